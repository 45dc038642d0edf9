#include "src/hook/half_products.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>
#include <emmintrin.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "src/base/assert.h"

// The block product wants its right side "packed": rows 2i and 2i + 1 interleaved, so that each
// pair lies together. For a transposed matrix that is a transposition of pairs.

namespace lowtide::hook {
namespace {

using at::BFloat16;
namespace cpublas = at::native::cpublas;

constexpr std::int64_t kColumns = 64;  // of a packed block
constexpr std::int64_t kRows = 64;
constexpr std::int64_t kRowsTransposed = 256;
constexpr std::int64_t kDepth = 1024;
constexpr std::int64_t kTile = 32;  // of the depth

void check(const at::Tensor& tensor, at::ScalarType dtype) {
  LOWTIDE_ASSERT(tensor.is_cpu() && tensor.dim() == 2 && tensor.scalar_type() == dtype);
  LOWTIDE_ASSERT(tensor.stride(1) == 1 || tensor.size(1) <= 1);
}

std::uint32_t pair_of(BFloat16 low, BFloat16 high) {
  return static_cast<std::uint32_t>(low.x) | (static_cast<std::uint32_t>(high.x) << 16);
}

// packed[(k / 2) * columns + c]: rows 2i, 2i + 1 of column c of b (depth, columns).
void pack(const BFloat16* b, std::int64_t ld, std::int64_t depth, std::int64_t columns,
          std::uint32_t* packed) {
  for (std::int64_t k = 0; k + 1 < depth; k += 2) {
    const BFloat16* const even = b + k * ld;
    const BFloat16* const odd = even + ld;
    std::uint32_t* const row = packed + (k / 2) * columns;
    for (std::int64_t c = 0; c < columns; ++c) row[c] = pair_of(even[c], odd[c]);
  }
  if (depth % 2 == 0) return;
  const BFloat16* const last = b + (depth - 1) * ld;
  std::uint32_t* const row = packed + (depth / 2) * columns;
  for (std::int64_t c = 0; c < columns; ++c) row[c] = pair_of(last[c], BFloat16(0));
}

// The same of b^T, with b (columns, depth).
void pack_transposed(const BFloat16* b, std::int64_t ld, std::int64_t depth, std::int64_t columns,
                     std::uint32_t* packed) {
  // In squares, so that both sides stay in cache.
  constexpr std::int64_t kSide = 16;
  for (std::int64_t k0 = 0; k0 < depth / 2; k0 += kSide) {
    const std::int64_t k1 = std::min(k0 + kSide, depth / 2);
    for (std::int64_t c = 0; c < columns; ++c) {
      for (std::int64_t k = k0; k < k1; ++k) {
        std::memcpy(packed + k * columns + c, b + c * ld + 2 * k, sizeof(std::uint32_t));
      }
    }
  }
}

// to (columns, depth) = from (depth, columns)^T. Eight by eight: pairs of rows are interleaved, and
// four by four of the pairs transposed.
void transpose(const BFloat16* from, std::int64_t ld, std::int64_t depth, std::int64_t columns,
               BFloat16* to, std::int64_t to_ld) {
  const std::int64_t whole_depth = depth - depth % 8, whole_columns = columns - columns % 8;
  for (std::int64_t d = 0; d < whole_depth; d += 8) {
    // Short pieces of rows far apart: no processor foresees them.
    for (std::int64_t next = d + 8; next < std::min(d + 16, depth); ++next) {
      for (std::int64_t c = 0; c < columns; c += 32) {
        _mm_prefetch(reinterpret_cast<const char*>(from + next * ld + c), _MM_HINT_T0);
      }
    }
    for (std::int64_t c = 0; c < whole_columns; c += 8) {
      __m128 low[4], high[4];
      for (int i = 0; i < 4; ++i) {
        const BFloat16* const row = from + (d + 2 * i) * ld + c;
        const __m128i even = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
        const __m128i odd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + ld));
        low[i] = _mm_castsi128_ps(_mm_unpacklo_epi16(even, odd));
        high[i] = _mm_castsi128_ps(_mm_unpackhi_epi16(even, odd));
      }
      _MM_TRANSPOSE4_PS(low[0], low[1], low[2], low[3]);
      _MM_TRANSPOSE4_PS(high[0], high[1], high[2], high[3]);
      for (int i = 0; i < 4; ++i) {
        _mm_storeu_ps(reinterpret_cast<float*>(to + (c + i) * to_ld + d), low[i]);
        _mm_storeu_ps(reinterpret_cast<float*>(to + (c + 4 + i) * to_ld + d), high[i]);
      }
    }
  }
  for (std::int64_t c = 0; c < columns; ++c) {
    const std::int64_t begin = c < whole_columns ? whole_depth : 0;
    for (std::int64_t d = begin; d < depth; ++d) to[c * to_ld + d] = from[d * ld + c];
  }
}

// c (rows, columns) = a (rows, depth) @ packed, or +=.
void multiply(const BFloat16* a, std::int64_t lda, const std::uint32_t* packed, std::int64_t rows,
              std::int64_t columns, std::int64_t depth, float* c, std::int64_t ldc, bool add) {
  const std::int64_t even = depth + depth % 2;
  for (std::int64_t r = 0; r < rows; r += kRows) {
    cpublas::brgemm(std::min(kRows, rows - r), columns, even, lda, columns, ldc, add, a + r * lda,
                    reinterpret_cast<const BFloat16*>(packed), c + r * ldc, /*is_vnni=*/true);
  }
}

std::int64_t blocks(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

}  // namespace

bool has_bfloat16_products() {
  static const bool has = cpublas::could_pack(at::kBFloat16);
  return has;
}

void product_with_transposed(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  check(a, at::kBFloat16);
  check(b, at::kBFloat16);
  check(out, at::kFloat);
  const std::int64_t m = a.size(0), n = b.size(0), k = a.size(1);
  LOWTIDE_ASSERT(k % 2 == 0 && b.size(1) == k && out.size(0) == m && out.size(1) == n);
  const auto* const left = a.const_data_ptr<BFloat16>();
  const auto* const right = b.const_data_ptr<BFloat16>();
  auto* const result = out.mutable_data_ptr<float>();
  at::parallel_for(0, blocks(n, kColumns), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint32_t> packed(static_cast<std::size_t>(k / 2 * kColumns));
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t c = i * kColumns, columns = std::min(kColumns, n - c);
      pack_transposed(right + c * b.stride(0), b.stride(0), k, columns, packed.data());
      multiply(left, a.stride(0), packed.data(), m, columns, k, result + c, out.stride(0), false);
    }
    cpublas::brgemm_release();
  });
}

TransposedFactor::TransposedFactor(const at::Tensor& b) : n_(b.size(0)), k_(b.size(1)) {
  check(b, at::kBFloat16);
  LOWTIDE_ASSERT(k_ % 2 == 0);
  packed_ = at::empty({n_, k_}, b.options().requires_grad(false));
  const auto* const from = b.const_data_ptr<BFloat16>();
  auto* const to = reinterpret_cast<std::uint32_t*>(packed_.mutable_data_ptr<BFloat16>());
  at::parallel_for(0, blocks(n_, kColumns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin * kColumns; c < std::min(n_, end * kColumns); c += kColumns) {
      pack_transposed(from + c * b.stride(0), b.stride(0), k_, std::min(kColumns, n_ - c),
                      to + c * (k_ / 2));
    }
  });
}

void TransposedFactor::product(const at::Tensor& a, at::Tensor& out) const {
  check(a, at::kBFloat16);
  check(out, at::kFloat);
  const std::int64_t m = a.size(0);
  LOWTIDE_ASSERT(a.size(1) == k_ && out.size(0) == m && out.size(1) == n_);
  const auto* const left = a.const_data_ptr<BFloat16>();
  const auto* const right =
      reinterpret_cast<const std::uint32_t*>(packed_.const_data_ptr<BFloat16>());
  auto* const result = out.mutable_data_ptr<float>();
  at::parallel_for(0, blocks(n_, kColumns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin * kColumns; c < std::min(n_, end * kColumns); c += kColumns) {
      multiply(left, a.stride(0), right + c * (k_ / 2), m, std::min(kColumns, n_ - c), k_,
               result + c, out.stride(0), false);
    }
    cpublas::brgemm_release();
  });
}

void product(const at::Tensor& a, const at::Tensor& b, at::Tensor& out, bool add) {
  check(a, at::kBFloat16);
  check(b, at::kBFloat16);
  check(out, at::kFloat);
  const std::int64_t m = a.size(0), n = b.size(1), k = a.size(1);
  LOWTIDE_ASSERT(b.size(0) == k && out.size(0) == m && out.size(1) == n);
  const auto* const left = a.const_data_ptr<BFloat16>();
  const auto* const right = b.const_data_ptr<BFloat16>();
  auto* const result = out.mutable_data_ptr<float>();
  // A stretch of b is packed for all columns, and then met by each block of a's rows.
  std::vector<std::uint32_t> packed(static_cast<std::size_t>(kDepth / 2 * n));
  for (std::int64_t d = 0; d < k; d += kDepth) {
    const std::int64_t depth = std::min(kDepth, k - d);
    const std::int64_t pairs = (depth + 1) / 2;
    at::parallel_for(0, blocks(n, kColumns), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin * kColumns; c < std::min(n, end * kColumns); c += kColumns) {
        pack(right + d * b.stride(0) + c, b.stride(0), depth, std::min(kColumns, n - c),
             packed.data() + c * pairs);
      }
    });
    at::parallel_for(0, blocks(m, kRows), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin * kRows; r < std::min(m, end * kRows); r += kRows) {
        for (std::int64_t c = 0; c < n; c += kColumns) {
          multiply(left + r * a.stride(0) + d, a.stride(0), packed.data() + c * pairs,
                   std::min(kRows, m - r), std::min(kColumns, n - c), depth,
                   result + r * out.stride(0) + c, out.stride(0), add || d > 0);
        }
      }
      cpublas::brgemm_release();
    });
  }
}

void transposed_product(const at::Tensor& a, const at::Tensor& b, at::Tensor& out, bool add) {
  check(a, at::kBFloat16);
  check(b, at::kBFloat16);
  check(out, at::kFloat);
  const std::int64_t m = a.size(1), n = b.size(1), k = a.size(0);
  LOWTIDE_ASSERT(b.size(0) == k && out.size(0) == m && out.size(1) == n);
  // With zeros to whole tiles: the block product takes twice as long for what is left over.
  const std::int64_t depth = blocks(k, kTile) * kTile;
  // Rows of a power of two would all want the same places in the cache.
  const std::int64_t row = depth + kTile;
  const auto* const left = a.const_data_ptr<BFloat16>();
  const auto* const right = b.const_data_ptr<BFloat16>();
  auto* const result = out.mutable_data_ptr<float>();
  // b is packed once, and read by all blocks of a^T's rows.
  std::vector<std::uint32_t> packed(static_cast<std::size_t>(depth / 2 * n), 0);
  for (std::int64_t c = 0; c < n; c += kColumns) {
    const std::int64_t columns = std::min(kColumns, n - c);
    pack(right + c, b.stride(0), k, columns, packed.data() + c * (depth / 2));
  }
  at::parallel_for(0, blocks(m, kRowsTransposed), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<BFloat16> rows(static_cast<std::size_t>(kRowsTransposed * row), BFloat16(0));
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t r = i * kRowsTransposed, size = std::min(kRowsTransposed, m - r);
      transpose(left + r, a.stride(0), k, size, rows.data(), row);
      for (std::int64_t c = 0; c < n; c += kColumns) {
        const std::int64_t columns = std::min(kColumns, n - c);
        multiply(rows.data(), row, packed.data() + c * (depth / 2), size, columns, depth,
                 result + r * out.stride(0) + c, out.stride(0), add);
      }
    }
    cpublas::brgemm_release();
  });
}

}  // namespace lowtide::hook
