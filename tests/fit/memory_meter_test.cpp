#include "lowtide/memory_meter.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_lazy_clone.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <doctest/doctest.h>
#include <malloc.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/hook/child_process.h"

using namespace lowtide;  // the tests of one header
using lowtide::testing::in_child_process;

TEST_CASE("live and peak follow allocations to the byte") {
  MemoryMeter meter;
  const Bytes start = meter.live_bytes();
  CHECK(meter.peak_bytes() == start);
  at::Tensor a = at::empty({1000});
  CHECK(meter.live_bytes() == start + 4000);
  at::Tensor b = at::empty({3}, at::kByte);
  CHECK(meter.live_bytes() == start + 4003);
  a.reset();
  CHECK(meter.live_bytes() == start + 3);
  const at::Tensor c = at::empty({10}, at::kDouble);
  CHECK(meter.live_bytes() == start + 83);
  CHECK(meter.peak_bytes() == start + 4003);
  meter.reset_peak();
  CHECK(meter.peak_bytes() == start + 83);
}

TEST_CASE("views share their storage's bytes, clones have their own") {
  MemoryMeter meter;
  const Bytes start = meter.live_bytes();
  at::Tensor base = at::ones({100});
  at::Tensor view = base.view({10, 10}).transpose(0, 1).slice(0, 2, 5);
  const at::Tensor detached = base.detach();
  CHECK(meter.live_bytes() == start + 400);
  const at::Tensor copy = view.clone();
  CHECK(meter.live_bytes() == start + 400 + 120);
  base.reset();
  const_cast<at::Tensor&>(detached).reset();
  CHECK(meter.live_bytes() == start + 400 + 120);  // the view keeps the storage
  view.reset();
  CHECK(meter.live_bytes() == start + 120);
}

TEST_CASE("a lazy clone has bytes of its own only once it is written") {
  MemoryMeter meter;
  const Bytes start = meter.live_bytes();
  at::Tensor base = at::ones({100});
  at::Tensor lazy = at::_lazy_clone(base);
  CHECK(meter.live_bytes() == start + 400);
  CHECK(retag(lazy, MemoryKind::kSaved) == 0);
  lazy.add_(1);
  CHECK(meter.live_bytes() == start + 800);
  CHECK(lazy[0].item<float>() == 2.0F);
  CHECK(base[0].item<float>() == 1.0F);
  base.reset();
  lazy.reset();
  CHECK(meter.live_bytes() == start);
}

TEST_CASE("memory of the program's own is not counted") {
  MemoryMeter meter;
  const Bytes start = meter.live_bytes();
  std::vector<float> values(1000, 2.0F);
  const at::Tensor foreign = at::from_blob(values.data(), {1000});
  CHECK(meter.live_bytes() == start);
  CHECK(retag(foreign, MemoryKind::kParameters) == 0);
  const at::Tensor copy = foreign.clone();
  CHECK(meter.live_bytes() == start + 4000);
}

TEST_CASE("a tensor that grows in place counts its new storage, and both while it copies") {
  MemoryMeter meter;
  const Bytes start = meter.live_bytes();
  at::Tensor tensor = at::arange(100, at::kFloat);
  tensor.resize_({1000});
  CHECK(meter.live_bytes() == start + 4000);
  CHECK(meter.peak_bytes() == start + 4400);
  CHECK(tensor[99].item<float>() == 99.0F);
  tensor.resize_({10});  // libtorch keeps the storage
  CHECK(meter.live_bytes() == start + 4000);
  tensor.set_(at::empty({5}).storage());
  CHECK(meter.live_bytes() == start + 20);
}

TEST_CASE("each meter has a peak of its own") {
  MemoryMeter outer;
  const Bytes start = outer.live_bytes();
  at::empty({1000});
  std::optional<MemoryMeter> inner;
  inner.emplace();
  MemoryMeter last;
  at::empty({500});
  CHECK(outer.peak_bytes() == start + 4000);
  CHECK(inner->peak_bytes() == start + 2000);
  inner.reset();
  last.reset_peak();
  at::empty({100});
  CHECK(last.peak_bytes() == start + 400);
  CHECK(outer.peak_bytes() == start + 4000);
}

TEST_CASE("a block counts under the innermost scope, and is uncounted there after the scope") {
  MemoryMeter meter;
  const MemoryByKind start = meter.by_kind();
  at::Tensor saved;
  at::Tensor parameter;
  {
    const KindScope outer(MemoryKind::kSaved);
    {
      const KindScope inner(MemoryKind::kParameters);
      parameter = at::empty({10});
    }
    saved = at::empty({20});
  }
  const at::Tensor plain = at::empty({30});
  const MemoryByKind now = meter.by_kind();
  CHECK(now[MemoryKind::kParameters] == start[MemoryKind::kParameters] + 40);
  CHECK(now[MemoryKind::kSaved] == start[MemoryKind::kSaved] + 80);
  CHECK(now[MemoryKind::kProgram] == start[MemoryKind::kProgram] + 120);
  CHECK(now.total() == meter.live_bytes());
  const KindScope other(MemoryKind::kWorkspace);
  saved.reset();
  CHECK(meter.by_kind()[MemoryKind::kSaved] == start[MemoryKind::kSaved]);
  CHECK(meter.by_kind()[MemoryKind::kWorkspace] == start[MemoryKind::kWorkspace]);
}

TEST_CASE("a scope does not reach other threads") {
  MemoryMeter meter;
  const MemoryByKind start = meter.by_kind();
  const KindScope scope(MemoryKind::kSaved);
  at::Tensor elsewhere;
  std::thread([&] { elsewhere = at::empty({100}); }).join();
  CHECK(meter.by_kind()[MemoryKind::kSaved] == start[MemoryKind::kSaved]);
  CHECK(meter.by_kind()[MemoryKind::kProgram] == start[MemoryKind::kProgram] + 400);
}

TEST_CASE("a scope around backward tags the gradients") {
  const at::Tensor weight = at::ones({1000}).set_requires_grad(true);
  const at::Tensor loss = at::mul(weight, weight).sum();
  MemoryMeter meter;
  const MemoryByKind start = meter.by_kind();
  {
    const KindScope scope(MemoryKind::kGradients);
    loss.backward();
  }
  CHECK(weight.grad().defined());
  CHECK(meter.by_kind()[MemoryKind::kGradients] == start[MemoryKind::kGradients] + 4000);
}

TEST_CASE("retagging moves the whole storage and leaves earlier peaks alone") {
  MemoryMeter meter;
  const MemoryByKind start = meter.by_kind();
  at::Tensor tensor = at::empty({100});
  const MemoryByKind peak = meter.peak_by_kind();
  CHECK(retag(tensor.slice(0, 5, 7), MemoryKind::kParameters) == 400);
  CHECK(meter.by_kind()[MemoryKind::kParameters] == start[MemoryKind::kParameters] + 400);
  CHECK(meter.by_kind()[MemoryKind::kProgram] == start[MemoryKind::kProgram]);
  CHECK(meter.peak_by_kind() == peak);
  CHECK(retag(tensor, MemoryKind::kParameters) == 400);
  CHECK(meter.by_kind()[MemoryKind::kParameters] == start[MemoryKind::kParameters] + 400);
  tensor.reset();
  CHECK(meter.by_kind() == start);
  CHECK(retag(at::Tensor(), MemoryKind::kSaved) == 0);
  CHECK(retag(at::empty({3}, at::kMeta), MemoryKind::kSaved) == 0);
  CHECK(retag(at::empty({0}), MemoryKind::kSaved) == 0);
  CHECK(retag_all(std::vector<at::Tensor>{at::empty({3}), at::empty({4})}, MemoryKind::kSaved) ==
        28);
}

TEST_CASE("the peak's kinds are those of the moment it was reached, and add up to it") {
  MemoryMeter meter;
  const MemoryByKind start = meter.by_kind();
  at::Tensor a;
  {
    const KindScope scope(MemoryKind::kSaved);
    a = at::empty({1000});
  }
  {
    const KindScope scope(MemoryKind::kGradients);
    at::empty({500});  // the peak: 4000 saved, 2000 gradients
  }
  a.reset();
  const at::Tensor b = at::empty({1200});
  const MemoryByKind peak = meter.peak_by_kind();
  CHECK(peak[MemoryKind::kSaved] == start[MemoryKind::kSaved] + 4000);
  CHECK(peak[MemoryKind::kGradients] == start[MemoryKind::kGradients] + 2000);
  CHECK(peak[MemoryKind::kProgram] == start[MemoryKind::kProgram]);
  CHECK(peak.total() == meter.peak_bytes());
}

TEST_CASE("reaching a peak again, of other kinds, is not a new peak") {
  MemoryMeter meter;
  {
    const KindScope scope(MemoryKind::kSaved);
    at::empty({1000});
  }
  const MemoryByKind peak = meter.peak_by_kind();
  const MemoryMeter lower;  // for which the next allocation is one
  {
    const KindScope scope(MemoryKind::kGradients);
    at::empty({1000});
  }
  CHECK(meter.peak_by_kind() == peak);
  CHECK(lower.peak_by_kind() != peak);
}

TEST_CASE("the meter agrees with a slow model of it over random histories") {
  struct Model {  // keeps every value that live took; the first of the highest is the peak
    std::vector<MemoryByKind> history;
    MemoryByKind at_peak(std::size_t since) const {
      return *std::max_element(history.begin() + static_cast<std::ptrdiff_t>(since), history.end(),
                               [](const auto& x, const auto& y) { return x.total() < y.total(); });
    }
  };
  struct Held {
    at::Tensor tensor;
    MemoryKind kind;
  };
  for (unsigned seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    MemoryMeter first;
    MemoryMeter second;
    std::vector<Held> held;
    Model model;
    model.history.push_back(first.by_kind());
    std::size_t second_since = 0;
    for (int step = 0; step < 300; ++step) {
      MemoryByKind now = model.history.back();
      const auto kind = static_cast<MemoryKind>(random() % kMemoryKindCount);
      const unsigned action = random() % 8;
      if (action < 4 || held.empty()) {
        const std::int64_t size = random() % 5000;
        const KindScope scope(kind);
        held.push_back({at::empty({size}, at::kByte), kind});
        now[kind] += static_cast<Bytes>(size);
      } else if (action < 6) {
        const std::size_t victim = random() % held.size();
        now[held[victim].kind] -= static_cast<Bytes>(held[victim].tensor.numel());
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
      } else if (action == 6) {
        Held& one = held[random() % held.size()];
        const auto size = static_cast<Bytes>(one.tensor.numel());
        CHECK(retag(one.tensor, kind) == size);
        if (size != 0) {
          now[one.kind] -= size;
          now[kind] += size;
          one.kind = kind;
        }
      } else {
        second.reset_peak();
        second_since = model.history.size() - 1;
      }
      model.history.push_back(now);
      REQUIRE(first.by_kind() == now);
      REQUIRE(first.peak_by_kind() == model.at_peak(0));
      REQUIRE(second.peak_by_kind() == model.at_peak(second_since));
    }
  }
}

TEST_CASE("eight threads at once lose no byte, and the peak lies between its bounds") {
  constexpr int kThreads = 8;
  constexpr Bytes kHeldTogether = 10'000;  // each thread holds this at the barrier
  constexpr Bytes kMost = 10'000 + 8'000;  // no thread ever holds more
  MemoryMeter meter;
  const MemoryByKind start = meter.by_kind();
  std::barrier all(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const KindScope scope(kAllMemoryKinds[static_cast<std::size_t>(t) % kMemoryKindCount]);
      c10::Allocator& allocator = *c10::GetCPUAllocator();
      {
        const c10::DataPtr held = allocator.allocate(kHeldTogether);
        all.arrive_and_wait();
        for (std::size_t i = 0; i < 20'000; ++i) {
          const c10::DataPtr block = allocator.allocate(1 + i * 7919 % 8'000);
        }
        all.arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(meter.by_kind() == start);
  CHECK(meter.peak_bytes() >= start.total() + kThreads * kHeldTogether);
  CHECK(meter.peak_bytes() <= start.total() + kThreads * kMost);
  CHECK(meter.peak_by_kind().total() == meter.peak_bytes());
}

TEST_CASE("a block freed on another thread is uncounted under its own kind") {
  MemoryMeter meter;
  const MemoryByKind start = meter.by_kind();
  at::Tensor tensor;
  {
    const KindScope scope(MemoryKind::kSaved);
    tensor = at::empty({100});
  }
  std::thread([moved = std::move(tensor)]() mutable { moved.reset(); }).join();
  CHECK(meter.by_kind() == start);
}

TEST_CASE("a convolution forward and backward gives back all it took") {
  const at::Tensor weight = at::ones({8, 3, 3, 3}).set_requires_grad(true);
  const at::Tensor image = at::ones({2, 3, 32, 32});
  const auto step = [&] {
    at::conv2d(image, weight).sum().backward();
    weight.mutable_grad().reset();
  };
  step();  // what libtorch keeps for good
  MemoryMeter meter;
  const Bytes start = meter.live_bytes();
  step();
  CHECK(meter.live_bytes() == start);
  CHECK(meter.peak_bytes() >= start + Bytes{2} * 8 * 30 * 30 * 4);
}

TEST_CASE("the kinds' names are those of the reports") {
  CHECK(std::string(to_string(MemoryKind::kProgram)) == "program");
  CHECK(std::string(to_string(MemoryKind::kParameters)) == "parameters");
  CHECK(std::string(to_string(MemoryKind::kGradients)) == "gradients");
  CHECK(std::string(to_string(MemoryKind::kOptimizerState)) == "optimizer_state");
  CHECK(std::string(to_string(MemoryKind::kSaved)) == "saved");
  CHECK(std::string(to_string(MemoryKind::kWorkspace)) == "workspace");
  MemoryByKind kinds;
  CHECK(to_string(kinds) == "nothing");
  kinds[MemoryKind::kSaved] = 2048;
  kinds[MemoryKind::kParameters] = 17;
  CHECK(to_string(kinds) == "parameters 17 B, saved 2.00 KiB");
}

namespace {

// A line of /proc/self/status, in bytes.
Bytes kernel_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == name + ":") {
      Bytes kibibytes = 0;
      status >> kibibytes;
      return kibibytes << 10;
    }
  }
  throw std::runtime_error("no " + name + " in /proc/self/status");
}

c10::DataPtr touched(std::size_t size_bytes) {
  c10::DataPtr data = c10::GetCPUAllocator()->allocate(size_bytes);
  std::memset(data.get(), 1, size_bytes);
  return data;
}

// Runs `body` in a child and compares the rise of the kernel's high-water mark with the meter's.
// The margin is for headers, whole pages and the C library's rounding, and for the kernel's
// per-processor counters, which are exact to some pages only.
int peaks_agree(const std::function<void()>& body) {
  return in_child_process([&] {
    malloc_trim(0);  // free memory of the parent would be used again without a trace in the mark
    MemoryMeter meter;
    const Bytes start = meter.live_bytes();
    const Bytes resident_before = kernel_bytes("VmRSS");
    body();
    const auto counted = static_cast<double>(meter.peak_bytes() - start);
    const auto kernel = static_cast<double>(kernel_bytes("VmHWM") - resident_before);
    std::fprintf(stderr, "counted peak %.0f, kernel's %.0f, ratio %.4f\n", counted, kernel,
                 kernel / counted);
    constexpr double kSlack = 2 << 20;
#if defined(__SANITIZE_ADDRESS__)
    constexpr double kHighest = 2.0;  // the sanitizer keeps freed blocks and shadow bytes
#else
    constexpr double kHighest = 1.01;
#endif
    return kernel >= counted - kSlack && kernel <= kHighest * counted + kSlack ? 0 : 1;
  });
}

}  // namespace

TEST_CASE("the counted peak is the kernel's high-water mark for touched memory") {
  SUBCASE("one block of 512 MiB, then smaller ones") {
    CHECK(peaks_agree([] {
            touched(512_MiB);
            touched(300_MiB);
            const c10::DataPtr a = touched(100_MiB);
            const c10::DataPtr b = touched(100_MiB);
          }) == 0);
  }
  SUBCASE("a peak in the middle, of two blocks") {
    CHECK(peaks_agree([] {
            c10::DataPtr a = touched(200_MiB);
            {
              const c10::DataPtr b = touched(150_MiB);
            }
            a.clear();
            touched(250_MiB);
          }) == 0);
  }
  SUBCASE("many small blocks held at once") {
    CHECK(peaks_agree([] {
            std::vector<c10::DataPtr> held;
            for (int i = 0; i < 4000; ++i) {
              held.push_back(touched(20'000 + static_cast<std::size_t>(i)));
            }
          }) == 0);
  }
}
