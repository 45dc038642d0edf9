// Multi-scale deformable attention over (batch, head) slices and threads.
//
// A slice's rows in `value` (bs, N, heads, D) lie heads * D elements apart. With 8 heads of 32
// floats that is 1 KiB, and rows that far apart fall into one eighth of the sets of a cache: a 512
// KiB cache behaves like one of 64 KiB. So slices are handled one after the other (as many at a
// time as there are threads), and when there are enough samples to pay for it each slice is first
// copied into a dense array, where the rows around a query, which is what its samples read, stay in
// the second-level cache. The copy also converts half precision to float32, and pads the width to
// whole vectors, so that the loops in kernels/ know neither. The gradient of value is collected in
// the same form and copied back.
//
// Threads. Forward, every (slice, block of queries) is independent. Backward, the gradients of
// value are sums over queries: a slice is one unit of work and adds in the order of queries. With
// fewer slices than threads the unit becomes one level of a slice, and then a band of rows of a
// level: each unit walks all queries, but adds only to its own rows. Every element is thus summed
// by one thread in the order of queries, however the work was cut: the bits do not depend on the
// number of threads, and there are no atomics.
//
// Example: one image, one head, one level, 16 threads: 16 bands. The price of bands is that each
// looks at all locations, about 3 bytes read for each 128 that a sample would cost.
//
// Tested by tests/nn/ms_deform_attn_test.cpp.

#include "src/nn/ms_deform_attn_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>

#include "src/base/assert.h"
#include "src/nn/ms_deform_attn_dispatch.h"

namespace lowtide {
namespace {

using Index = std::int64_t;

// Large enough to hide the cost of a call, small enough to spread over threads.
constexpr Index kBlockQueries = 64;
// Below this many samples a thread is not worth waking.
constexpr Index kGrainSamples = 2048;
constexpr Index kGrainTokens = 4096;

Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

void run_forward(const MsDeformAttnKernels& kernels, const MsDeformAttnForward<float>& call) {
  kernels.forward_float(call);
}
void run_forward(const MsDeformAttnKernels& kernels, const MsDeformAttnForward<double>& call) {
  kernels.forward_double(call);
}
void run_backward(const MsDeformAttnKernels& kernels, const MsDeformAttnBackward<float>& call) {
  kernels.backward_float(call);
}
void run_backward(const MsDeformAttnKernels& kernels, const MsDeformAttnBackward<double>& call) {
  kernels.backward_double(call);
}

// Rows of `width` elements to rows of `padded` ones, converting, zeros behind.
template <typename From, typename To>
void copy_rows(const From* from, Index from_stride, Index width, To* to, Index to_stride,
               Index padded, Index rows) {
  for (Index row = 0; row < rows; ++row) {
    const From* __restrict source = from + row * from_stride;
    To* __restrict target = to + row * to_stride;
    for (Index i = 0; i < width; ++i) {
      target[i] = static_cast<To>(source[i]);
    }
    for (Index i = width; i < padded; ++i) {
      target[i] = To(0);
    }
  }
}

template <typename T>
constexpr at::ScalarType kScalarType = std::is_same_v<T, double> ? at::kDouble : at::kFloat;

// The per-sample tables of MsDeformAttnSlice, for one stride between rows of value.
template <typename T>
class SampleGeometry {
 public:
  SampleGeometry(const std::vector<MsDeformAttnLevel>& levels, Index points, Index value_stride) {
    constexpr Index kRoomBehind = 15;
    const std::size_t entries =
        static_cast<std::size_t>(static_cast<Index>(levels.size()) * points + kRoomBehind);
    width_.resize(entries);
    height_.resize(entries);
    width_px_.resize(entries);
    level_start_.resize(entries);
    row_stride_.resize(entries);
    std::size_t sample = 0;
    for (const MsDeformAttnLevel& level : levels) {
      for (Index point = 0; point < points; ++point, ++sample) {
        width_[sample] = static_cast<T>(level.width);
        height_[sample] = static_cast<T>(level.height);
        width_px_[sample] = static_cast<Int>(level.width);
        level_start_[sample] = static_cast<Int>(level.start);
        row_stride_[sample] = level.width * value_stride;
      }
    }
  }

  void fill(MsDeformAttnSlice<T>& slice) const {
    slice.sample_width = width_.data();
    slice.sample_height = height_.data();
    slice.sample_width_px = width_px_.data();
    slice.level_start = level_start_.data();
    slice.row_stride = row_stride_.data();
  }

 private:
  using Int = typename MsDeformAttnInt<T>::Type;
  std::vector<T> width_;
  std::vector<T> height_;
  std::vector<Int> width_px_;
  std::vector<Int> level_start_;
  std::vector<Index> row_stride_;
};

// Stored: the dtype of value and of the output. T: the dtype of the arithmetic.
template <typename Stored, typename T>
class SlicedAttention {
 public:
  SlicedAttention(const at::Tensor& value, const std::vector<MsDeformAttnLevel>& levels,
                  const at::Tensor& locations, const at::Tensor& weights,
                  const MsDeformAttnSizes& sizes)
      : kernels_(chosen_ms_deform_attn_kernels()),
        sizes_(sizes),
        levels_(levels),
        value_(value.const_data_ptr<Stored>()),
        locations_(locations.const_data_ptr<T>()),
        weights_(weights.const_data_ptr<T>()),
        samples_(sizes.levels * sizes.points),
        slices_(sizes.batch * sizes.heads),
        token_stride_(sizes.heads * sizes.head_width),
        blocks_(ceil_div(sizes.queries, kBlockQueries)),
        threads_(at::get_num_threads()),
        width_(ceil_div(sizes.head_width, lanes()) * lanes()),
        rows_are_ready_(std::is_same_v<Stored, T> && width_ == sizes.head_width),
        // A token is worth copying when it is read about twice or more.
        packed_(!rows_are_ready_ || sizes.queries * samples_ * 4 >= 2 * sizes.tokens),
        group_(packed_ ? std::min(slices_, std::max<Index>(threads_, 1)) : slices_),
        geometry_(levels, sizes.points, packed_ ? width_ : token_stride_) {}

  void forward(Stored* output) {
    const at::Tensor workspace = packed_ ? rows_workspace() : at::Tensor();
    for (Index first = 0; first < slices_; first += group_) {
      const Index count = std::min(group_, slices_ - first);
      T* rows = packed_ ? workspace.mutable_data_ptr<T>() : nullptr;
      if (packed_) {
        pack(first, count, rows);
      }
      for_each_block(count, [&](Index slice, Index block, T* staged) {
        MsDeformAttnForward<T> call{};
        const Index queries = fill(call.slice, first + slice, slice, block, rows);
        call.samples = samples_;
        Stored* target = output_row(output, first + slice, block);
        if constexpr (std::is_same_v<Stored, T>) {
          if (rows_are_ready_) {
            call.output = target;
            call.output_stride = token_stride_;
            run_forward(kernels_, call);
            return;
          }
        }
        call.output = staged;
        call.output_stride = width_;
        run_forward(kernels_, call);
        copy_rows(staged, width_, sizes_.head_width, target, token_stride_, sizes_.head_width,
                  queries);
      });
    }
  }

  // Null pointers: not needed. grad_value is overwritten.
  void backward(const Stored* grad_output, Stored* grad_value, T* grad_locations, T* grad_weights) {
    const bool value_is_read = grad_locations != nullptr || grad_weights != nullptr;
    const bool collect = grad_value != nullptr && packed_;
    const at::Tensor rows_memory = packed_ && value_is_read ? rows_workspace() : at::Tensor();
    const at::Tensor collected_memory = collect ? rows_workspace() : at::Tensor();
    T* rows = rows_memory.defined() ? rows_memory.mutable_data_ptr<T>() : nullptr;
    T* collected = collect ? collected_memory.mutable_data_ptr<T>() : nullptr;

    for (Index first = 0; first < slices_; first += group_) {
      const Index count = std::min(group_, slices_ - first);
      if (rows != nullptr) {
        pack(first, count, rows);
      }
      const auto run = [&](Index slice, Index block, MsDeformAttnBackward<T>& call, T* staged) {
        const Index queries = fill(call.slice, first + slice, slice, block, rows);
        const Stored* source = output_row(grad_output, first + slice, block);
        bool staging = true;
        if constexpr (std::is_same_v<Stored, T>) {
          if (rows_are_ready_) {
            staging = false;
            call.grad_output = source;
            call.grad_output_stride = token_stride_;
          }
        }
        if (staging) {
          copy_rows(source, token_stride_, sizes_.head_width, staged, width_, width_, queries);
          call.grad_output = staged;
          call.grad_output_stride = width_;
        }
        const Index query = query_row(first + slice, block);
        if (grad_locations != nullptr) {
          call.grad_locations = grad_locations + query * 2 * samples_;
        }
        if (grad_weights != nullptr) {
          call.grad_weights = grad_weights + query * samples_;
        }
        if (grad_value != nullptr) {
          if constexpr (std::is_same_v<Stored, T>) {
            call.grad_value = packed_ ? collected + slice * sizes_.tokens * width_
                                      : grad_value + value_offset(first + slice);
          } else {
            call.grad_value = collected + slice * sizes_.tokens * width_;
          }
        }
        run_backward(kernels_, call);
      };

      if (grad_value == nullptr) {
        for_each_block(count, [&](Index slice, Index block, T* staged) {
          MsDeformAttnBackward<T> call{};
          call.sample_end = samples_;
          call.row_end = std::numeric_limits<std::int32_t>::max();
          run(slice, block, call, staged);
        });
        continue;
      }
      if (collect) {
        at::parallel_for(0, count * sizes_.tokens, kGrainTokens, [&](Index begin, Index end) {
          std::fill(collected + begin * width_, collected + end * width_, T(0));
        });
      }
      const std::vector<Unit> units = cut(count);
      at::parallel_for(0, static_cast<Index>(units.size()), unit_grain(units.size(), count),
                       [&](Index begin, Index end) {
                         const std::unique_ptr<T[]> staged = stage();
                         for (Index i = begin; i < end; ++i) {
                           const Unit& unit = units[static_cast<std::size_t>(i)];
                           for (Index block = 0; block < blocks_; ++block) {
                             MsDeformAttnBackward<T> call{};
                             call.sample_begin = unit.sample_begin;
                             call.sample_end = unit.sample_end;
                             call.row_begin = unit.row_begin;
                             call.row_end = unit.row_end;
                             run(unit.slice, block, call, staged.get());
                           }
                         }
                       });
      if (collect) {
        unpack(first, count, collected, grad_value);
      }
    }
  }

  // Whether backward() adds straight into grad_value, which must then be zero.
  bool adds_in_place() const { return !packed_; }

 private:
  // A part of a slice whose gradients of value one thread adds up.
  struct Unit {
    Index slice;
    Index sample_begin;
    Index sample_end;
    std::int32_t row_begin;
    std::int32_t row_end;
  };

  Index lanes() const { return kernels_.vector_bytes / static_cast<Index>(sizeof(T)); }

  std::vector<Unit> cut(Index slices) const {
    constexpr std::int32_t kAllRows = std::numeric_limits<std::int32_t>::max();
    std::vector<Unit> units;
    for (Index slice = 0; slice < slices; ++slice) {
      if (slices >= threads_) {
        units.push_back({slice, 0, samples_, 0, kAllRows});
        continue;
      }
      const Index bands = ceil_div(threads_, slices * sizes_.levels);
      for (Index l = 0; l < sizes_.levels; ++l) {
        const Index height = levels_[static_cast<std::size_t>(l)].height;
        const Index level_bands = std::max<Index>(1, std::min(bands, height));
        for (Index band = 0; band < level_bands; ++band) {
          const bool last = band + 1 == level_bands;
          units.push_back(
              {slice, l * sizes_.points, (l + 1) * sizes_.points,
               static_cast<std::int32_t>(height * band / level_bands),
               last ? kAllRows : static_cast<std::int32_t>(height * (band + 1) / level_bands)});
        }
      }
    }
    return units;
  }

  Index unit_grain(std::size_t units, Index slices) const {
    const Index samples = slices * sizes_.queries * samples_;
    const Index per_unit = std::max<Index>(1, samples / static_cast<Index>(units));
    return std::max<Index>(1, kGrainSamples / per_unit);
  }

  // fn(slice of the group, block of queries, memory for the block's output rows), on all threads.
  template <typename Function>
  void for_each_block(Index slices, const Function& fn) const {
    const Index per_block = std::max<Index>(1, std::min(sizes_.queries, kBlockQueries) * samples_);
    const Index grain = std::max<Index>(1, kGrainSamples / per_block);
    at::parallel_for(0, slices * blocks_, grain, [&](Index begin, Index end) {
      const std::unique_ptr<T[]> staged = stage();
      for (Index i = begin; i < end; ++i) {
        fn(i / blocks_, i % blocks_, staged.get());
      }
    });
  }

  std::unique_ptr<T[]> stage() const {
    return rows_are_ready_ ? nullptr
                           : std::make_unique_for_overwrite<T[]>(
                                 static_cast<std::size_t>(kBlockQueries * width_));
  }

  at::Tensor rows_workspace() const {
    return at::empty({group_ * sizes_.tokens * width_}, at::TensorOptions().dtype(kScalarType<T>));
  }

  void pack(Index first, Index count, T* rows) const {
    for_each_run_of_tokens(first, count, [&](Index value_at, Index row, Index tokens) {
      copy_rows(value_ + value_at, token_stride_, sizes_.head_width, rows + row * width_, width_,
                width_, tokens);
    });
  }

  void unpack(Index first, Index count, const T* rows, Stored* grad_value) const {
    for_each_run_of_tokens(first, count, [&](Index value_at, Index row, Index tokens) {
      copy_rows(rows + row * width_, width_, sizes_.head_width, grad_value + value_at,
                token_stride_, sizes_.head_width, tokens);
    });
  }

  template <typename Function>
  void for_each_run_of_tokens(Index first, Index count, const Function& fn) const {
    const Index tokens = sizes_.tokens;
    at::parallel_for(0, count * tokens, kGrainTokens, [&](Index begin, Index end) {
      while (begin < end) {
        const Index slice = begin / tokens;
        const Index token = begin % tokens;
        const Index run = std::min(end - begin, tokens - token);
        fn(value_offset(first + slice) + token * token_stride_, begin, run);
        begin += run;
      }
    });
  }

  // Element of the first token of a slice in value (bs, N, heads, D).
  Index value_offset(Index slice) const {
    return slice / sizes_.heads * sizes_.tokens * token_stride_ +
           slice % sizes_.heads * sizes_.head_width;
  }

  // Row of a block's first query in the (bs, Q, heads) arrays.
  Index query_row(Index slice, Index block) const {
    return (slice / sizes_.heads * sizes_.queries + block * kBlockQueries) * sizes_.heads +
           slice % sizes_.heads;
  }

  template <typename Pointer>
  Pointer output_row(Pointer output, Index slice, Index block) const {
    return output + query_row(slice, block) * sizes_.head_width;
  }

  // Returns the number of queries in the block.
  Index fill(MsDeformAttnSlice<T>& call, Index slice, Index slice_in_group, Index block,
             const T* rows) const {
    geometry_.fill(call);
    if (packed_) {
      call.value = rows == nullptr ? nullptr : rows + slice_in_group * sizes_.tokens * width_;
      call.value_stride = width_;
    } else if constexpr (std::is_same_v<Stored, T>) {
      call.value = value_ + value_offset(slice);
      call.value_stride = token_stride_;
    }
    call.width = width_;
    const Index query = query_row(slice, block);
    call.locations = locations_ + query * 2 * samples_;
    call.locations_stride = sizes_.heads * 2 * samples_;
    call.weights = weights_ + query * samples_;
    call.weights_stride = sizes_.heads * samples_;
    call.queries = std::min(kBlockQueries, sizes_.queries - block * kBlockQueries);
    return call.queries;
  }

  const MsDeformAttnKernels& kernels_;
  const MsDeformAttnSizes sizes_;
  const std::vector<MsDeformAttnLevel>& levels_;
  const Stored* value_;
  const T* locations_;
  const T* weights_;
  Index samples_;  // of one query in one slice
  Index slices_;
  Index token_stride_;  // elements from token to token in value
  Index blocks_;        // of queries
  Index threads_;
  Index width_;          // head_width rounded up to whole vectors
  bool rows_are_ready_;  // rows can be handed to the loops where they are
  bool packed_;
  Index group_;  // slices at a time
  SampleGeometry<T> geometry_;
};

bool is_empty(const MsDeformAttnSizes& sizes) {
  return sizes.batch == 0 || sizes.heads == 0 || sizes.head_width == 0 || sizes.queries == 0 ||
         sizes.points == 0 || sizes.tokens == 0;
}

// Calls fn(Stored{}, T{}) with the types of a value of this dtype.
template <typename Function>
void with_types(at::ScalarType dtype, const Function& fn) {
  switch (dtype) {
    case at::kFloat:
      return fn(float{}, float{});
    case at::kDouble:
      return fn(double{}, double{});
    case at::kBFloat16:
      return fn(c10::BFloat16{}, float{});
    case at::kHalf:
      return fn(c10::Half{}, float{});
    default:
      LOWTIDE_ASSERT(false);
  }
}

}  // namespace

at::Tensor ms_deform_attn_forward_cpu(const at::Tensor& value,
                                      const std::vector<MsDeformAttnLevel>& levels,
                                      const at::Tensor& sampling_locations,
                                      const at::Tensor& attention_weights,
                                      const MsDeformAttnSizes& sizes) {
  const std::array<Index, 3> output_sizes = {sizes.batch, sizes.queries,
                                             sizes.heads * sizes.head_width};
  const at::TensorOptions options = at::TensorOptions().dtype(value.scalar_type());
  if (is_empty(sizes)) {
    return at::zeros(output_sizes, options);
  }
  at::Tensor output = at::empty(output_sizes, options);
  const at::Tensor dense_value = value.contiguous();
  const at::Tensor locations = sampling_locations.contiguous();
  const at::Tensor weights = attention_weights.contiguous();
  with_types(value.scalar_type(), [&](auto stored, auto arithmetic) {
    using Stored = decltype(stored);
    SlicedAttention<Stored, decltype(arithmetic)> attention(dense_value, levels, locations, weights,
                                                            sizes);
    attention.forward(output.mutable_data_ptr<Stored>());
  });
  return output;
}

std::array<at::Tensor, 3> ms_deform_attn_backward_cpu(const at::Tensor& grad_output,
                                                      const at::Tensor& value,
                                                      const std::vector<MsDeformAttnLevel>& levels,
                                                      const at::Tensor& sampling_locations,
                                                      const at::Tensor& attention_weights,
                                                      const MsDeformAttnSizes& sizes,
                                                      std::array<bool, 3> needed) {
  std::array<at::Tensor, 3> gradients;
  const std::array<const at::Tensor*, 3> inputs = {&value, &sampling_locations, &attention_weights};
  if (is_empty(sizes)) {
    for (std::size_t i = 0; i < 3; ++i) {
      if (needed[i]) {
        gradients[i] = at::zeros(inputs[i]->sizes(), inputs[i]->options());
      }
    }
    return gradients;
  }
  if (!needed[0] && !needed[1] && !needed[2]) {
    return gradients;
  }
  const at::Tensor dense_gradient = grad_output.contiguous();
  const at::Tensor dense_value = value.contiguous();
  const at::Tensor locations = sampling_locations.contiguous();
  const at::Tensor weights = attention_weights.contiguous();
  with_types(value.scalar_type(), [&](auto stored, auto arithmetic) {
    using Stored = decltype(stored);
    using T = decltype(arithmetic);
    SlicedAttention<Stored, T> attention(dense_value, levels, locations, weights, sizes);
    if (needed[0]) {
      gradients[0] = attention.adds_in_place() ? at::zeros(value.sizes(), value.options())
                                               : at::empty(value.sizes(), value.options());
    }
    for (std::size_t i = 1; i < 3; ++i) {
      if (needed[i]) {
        gradients[i] = at::empty(inputs[i]->sizes(), inputs[i]->options());
      }
    }
    attention.backward(dense_gradient.const_data_ptr<Stored>(),
                       needed[0] ? gradients[0].mutable_data_ptr<Stored>() : nullptr,
                       needed[1] ? gradients[1].mutable_data_ptr<T>() : nullptr,
                       needed[2] ? gradients[2].mutable_data_ptr<T>() : nullptr);
  });
  return gradients;
}

}  // namespace lowtide
