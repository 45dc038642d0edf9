// What surrounds a region: generators, buffers, autocast, switches; divergence; offloading.

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "tests/checkpoint/both_ways.h"

namespace lowtide::testing {
namespace {

// Random numbers.

TEST_CASE("dropout replays exactly and the generator is left as the plain run leaves it") {
  same_both_ways([](Run& run) {
    at::Tensor x = parameter({64});
    at::Tensor y = run(
        [](const at::Tensor& t) {
          return at::dropout(at::dropout(t, 0.5, true).sin(), 0.5, true).exp();
        },
        activation(x));
    at::Tensor after_forward = generator_state();
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad(), after_forward, at::rand({3})};
  });
}

TEST_CASE("draws inside a kernel and normal numbers left over by Box-Muller") {
  same_both_ways([](Run& run) {
    at::Tensor x = parameter({64});
    at::Tensor y = run(
        [](const at::Tensor& t) {
          at::Tensor u = std::get<0>(at::native_dropout(t, 0.5, true)).sin();
          return (u * at::randn({1}) + u * at::randn({3}).sum() * at::normal(0.0, 1.0, {64})).exp();
        },
        activation(x));
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad(), at::randn({1})};
  });
}

TEST_CASE("a generator of the user's own replays exactly without being listed") {
  same_both_ways([](Run& run) {
    at::Generator own = at::detail::createCPUGenerator(11),
                  other = at::detail::createCPUGenerator(12);
    at::Tensor x = parameter({64});
    at::Tensor y = run(
        [own, other](const at::Tensor& t) {
          at::Tensor mask = at::empty_like(t).bernoulli_(0.5, own);
          at::Tensor noise = at::empty_like(t).uniform_(0, 1, other);
          mask = mask * at::empty_like(t).bernoulli_(0.7, own);
          return at::rrelu((t * mask).sin() * noise, 0.1, 0.9, true, own).exp();
        },
        activation(x));
    at::rand({1}, own);  // moves on before backward
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad(), own.get_state(), other.get_state()};
  });
}

std::uint32_t draw_by_hand(const at::Generator& generator) {
  auto* const cpu = generator.get<at::CPUGeneratorImpl>();
  const std::lock_guard<std::mutex> lock(cpu->mutex_);
  return cpu->random() % 1000;
}

TEST_CASE("numbers drawn by hand from the default generator replay exactly") {
  same_both_ways([](Run& run) {
    at::Tensor x = parameter({64});
    at::Tensor y = run(
        [](const at::Tensor& t) {
          const auto& generator = at::detail::getDefaultCPUGenerator();
          at::Tensor u = (t * static_cast<double>(draw_by_hand(generator))).sin();
          u = at::dropout(u, 0.5, true);
          u = (u * static_cast<double>(draw_by_hand(generator))).sin();
          return (at::dropout(u, 0.5, true) * static_cast<double>(draw_by_hand(generator))).exp();
        },
        activation(x));
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad()};
  });
}

TEST_CASE("numbers drawn by hand from an own generator: listed exactly, else refused") {
  const auto own = at::detail::createCPUGenerator(11);
  const auto program = [own](Run& run) {
    at::Generator generator = own;
    generator.set_current_seed(5);
    at::Tensor x = parameter({64});
    at::Tensor y = run(
        [own](const at::Tensor& t) {
          at::Tensor u = (t * static_cast<double>(draw_by_hand(own))).sin();
          return (u * at::empty_like(t).bernoulli_(0.5, own)).exp();
        },
        activation(x));
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad(), own.get_state()};
  };
  same_both_ways(program, CheckpointOptions{.generators = {own}});
  Run unlisted;
  const std::string id = error_id([&] { program(unlisted); });
  // Whichever is noticed first: the other number, or that the generator moved.
  CHECK((id == "LT0205" || id == "LT0201"));

  at::Tensor x = parameter({64});
  at::Tensor y = checkpoint(
      [own](const at::Tensor& t) {
        const at::Tensor number = at::full({1}, static_cast<double>(draw_by_hand(own)));
        return (t * number * at::empty_like(t).bernoulli_(0.5, own)).exp();
      },
      activation(x));
  const at::Tensor before = own.get_state();
  CHECK(error_id([&] { y.sum().backward(); }) == "LT0205");
  CHECK(same_bits(before, own.get_state()));
}

TEST_CASE("threads that share the default generator each replay what they drew") {
  const auto draw = [](bool* right) {
    for (int i = 0; i < 50; ++i) {
      at::Tensor w = at::ones({256}).set_requires_grad(true);
      const at::Tensor x = at::ones({256});
      at::Tensor y = checkpoint(
          [&](const at::Tensor& t) {
            at::Tensor u = at::dropout(t, 0.5, true);
            std::this_thread::yield();
            return at::dropout(u + 1, 0.5, true) * w;
          },
          x);
      y.sum().backward();
      *right = *right && same_bits(w.grad(), y.detach());  // d(u * w)/dw = u, and w = 1
    }
  };
  bool one_right = true, two_right = true;
  std::thread one(draw, &one_right), two(draw, &two_right);
  one.join();
  two.join();
  CHECK(one_right);
  CHECK(two_right);
}

// Buffers.

TEST_CASE("batch norm's running statistics move once") {
  for (const bool early_stop : {true, false}) {
    same_both_ways(
        [](Run& run) {
          at::Tensor mean = at::zeros({8}), var = at::ones({8}), batches = at::zeros({}, at::kLong);
          at::Tensor gain = parameter({8}), x = parameter({4, 8});
          const auto block = [&](const at::Tensor& t) {
            batches.add_(1);
            const double momentum = 1.0 / static_cast<double>(batches.item<std::int64_t>());
            return at::batch_norm(t, gain, {}, mean, var, true, momentum, 1e-5, false).sin().exp();
          };
          at::Tensor y = run(block, run(block, activation(x)));
          y.sum().backward();
          return std::vector<at::Tensor>{
              y,
              x.grad(),
              gain.grad(),
              mean,
              var,
              batches,
              at::tensor({static_cast<std::int64_t>(batches._version())})};
        },
        CheckpointOptions{.early_stop = early_stop});
  }
}

TEST_CASE("instance norm, which writes through a copy of its buffers") {
  same_both_ways([](Run& run) {
    at::Tensor mean = at::zeros({8}), var = at::ones({8}), x = parameter({4, 8, 5});
    at::Tensor y = run(
        [&](const at::Tensor& t) {
          return at::instance_norm(t, {}, {}, mean, var, true, 0.1, 1e-5, false).sin().exp();
        },
        activation(x));
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad(), mean, var};
  });
}

TEST_CASE("a moving average that the region reads and updates is replayed from its old value") {
  same_both_ways([](Run& run) {
    at::Tensor average = at::ones({8}), x = parameter({4, 8});
    const auto block = [&](const at::Tensor& t) {
      at::Tensor centred = (t - average).sin();
      {
        const at::NoGradGuard no_grad;
        average.mul_(0.9).add_(t.mean(0), 0.1);
      }
      return (centred * average).exp();
    };
    at::Tensor y = run(block, activation(x));
    at::Tensor after = average.clone();
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad(), average, after};
  });
  // Two calls: in plain autograd the second write makes the first product's backward impossible.
  for (const bool checkpointed : {false, true}) {
    Run run{checkpointed};
    at::Tensor average = at::ones({8}), x = parameter({4, 8});
    const auto block = [&](const at::Tensor& t) {
      average.mul_(0.9);
      return t * average;
    };
    at::Tensor y = run(block, run(block, activation(x)));
    CHECK_THROWS_AS(y.sum().backward(), c10::Error);
  }
}

TEST_CASE("a buffer that changed since and that the region only reads is refused") {
  at::Tensor shift = at::ones({4}), x = parameter({4});
  at::Tensor y = checkpoint([&](const at::Tensor& t) { return (t + shift).exp(); }, activation(x));
  shift.add_(1);
  std::string message;
  CHECK(error_id([&] { y.sum().backward(); }, &message) == "LT0203");
  CHECK(message.find("Float tensor of shape [4]") != std::string::npos);
  CHECK(message.find("version 1 then, 2 now") != std::string::npos);
}

TEST_CASE("a parameter that was given other data since is refused") {
  at::Tensor w = parameter({4}), x = parameter({4});
  at::Tensor y =
      checkpoint([&](const at::Tensor& t) { return (t * w).sin().exp(); }, activation(x));
  w.set_data(at::ones({4}));
  std::string message;
  CHECK(error_id([&] { y.sum().backward(); }, &message) == "LT0203");
  CHECK(message.find("given other storage since") != std::string::npos);

  at::Tensor shift = at::ones({4});
  y = checkpoint([&](const at::Tensor& t) { return (t + shift).exp(); }, activation(x));
  auto* const storage = shift.storage().unsafeGetStorageImpl();
  storage->set_data_ptr(storage->allocator()->allocate(storage->nbytes()));
  CHECK(error_id([&] { y.sum().backward(); }) == "LT0203");
}

// What FullyShardedDataParallel does with its parameters after each layer.
TEST_CASE("a parameter may be freed and come back with the same bytes, but not with others") {
  for (const std::int64_t size : {4, 100'000}) {
    for (const bool same : {true, false}) {
      CAPTURE(size);
      at::Tensor w = parameter({size}), x = parameter({size});
      at::Tensor y = checkpoint([&](const at::Tensor& t) { return (t + w).exp(); }, activation(x));
      at::Tensor plain = (activation(x) + w).exp();
      auto* const storage = w.storage().unsafeGetStorageImpl();
      const at::Tensor bytes = w.detach().clone();
      c10::DataPtr other = storage->allocator()->allocate(storage->nbytes());
      std::memcpy(other.get(), bytes.const_data_ptr(), storage->nbytes());
      if (!same) static_cast<float*>(other.get())[size / 2 + 1] += 1;
      if (!same && size > 4) std::memset(other.get(), 0, storage->nbytes());
      storage->set_data_ptr(std::move(other));
      if (!same) {
        CHECK(error_id([&] { y.sum().backward(); }) == "LT0203");
        continue;
      }
      CHECK(torch::autograd::grad({y.sum()}, {x})[0].equal(
          torch::autograd::grad({plain.sum()}, {x})[0]));
    }
  }
}

TEST_CASE("a parameter that was written without a version is refused") {
  at::Tensor w = parameter({100'000}), x = parameter({100'000});
  const at::Tensor y =
      checkpoint([&](const at::Tensor& t) { return (t + w).exp(); }, activation(x));
  w.tensor_data().fill_(2);
  CHECK(error_id([&] { y.sum().backward(); }) == "LT0203");
}

TEST_CASE("a captured tensor with history that the region changes in place is refused") {
  at::Tensor x = parameter({4}), w = parameter({4});
  at::Tensor captured = activation(x);
  at::Tensor y =
      checkpoint([&](const at::Tensor& t) { return captured.mul_(t).sin().exp(); }, activation(w));
  const at::Tensor before = captured.detach().clone();
  const auto* const history = captured.grad_fn().get();
  CHECK(error_id([&] { y.sum().backward(); }) == "LT0204");
  CHECK(same_bits(captured.detach(), before));
  CHECK(captured.grad_fn().get() == history);
}

TEST_CASE("a write to another tensor than the first time is refused before it is done") {
  at::Tensor counts[2] = {at::zeros({1}), at::zeros({1})}, x = parameter({4});
  int calls = 0;
  at::Tensor y = checkpoint(
      [&](const at::Tensor& t) {
        counts[calls++ % 2].add_(1);
        return t.sin().exp();
      },
      activation(x));
  CHECK(error_id([&] { y.sum().backward(); }) == "LT0208");
  CHECK(counts[0].item<float>() == 1);
  CHECK(counts[1].item<float>() == 0);
}

TEST_CASE("tensors made without an op may be written in the region") {
  same_both_ways([](Run& run) {
    at::Tensor x = parameter({2});
    at::Tensor y = run(
        [](const at::Tensor& t) {
          auto* const numbers = new float[2]{1, 2};
          at::Tensor table = at::from_blob(numbers, {2}, [numbers](void*) { delete[] numbers; });
          table.mul_(3);
          at::Tensor other = at::tensor({1.f, 2.f});
          other.mul_(t);
          return (t * table).exp() + other.sin();
        },
        activation(x));
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad()};
  });
}

// Autocast and switches.

struct Autocast {
  explicit Autocast(bool enabled) : before(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, before);
  }
  bool before;
};

TEST_CASE("autocast is as in the first run, around the region and inside it") {
  for (const bool outside : {true, false}) {
    same_both_ways([&](Run& run) {
      at::Tensor w = parameter({8, 8}), x = parameter({4, 8});
      at::Tensor y;
      {
        const Autocast on(outside);
        y = run(
            [w](const at::Tensor& t) {
              at::Tensor u = t.matmul(w).tanh();
              {
                const Autocast off(false);
                u = u.to(at::kFloat).matmul(w).exp();
              }
              const Autocast on_again(true);
              return u.matmul(w).tanh().matmul(w);
            },
            activation(x));
      }
      y.sum().backward();
      CHECK(!at::autocast::is_autocast_enabled(at::kCPU));
      return std::vector<at::Tensor>{y, x.grad(), w.grad()};
    });
  }
}

TEST_CASE("autocast may be on in backward, and its cache keeps nothing of the replay") {
  same_both_ways([](Run& run) {
    at::Tensor w = parameter({8, 8}), x = parameter({4, 8});
    at::Tensor y;
    {
      const Autocast first(true);
      y = run([w](const at::Tensor& t) { return t.matmul(w).tanh().matmul(w).exp(); },
              activation(x));
    }
    const Autocast on(true);
    y.sum().backward();
    y = at::Tensor();
    // A cast of w in the cache would hold w through its history.
    const auto uses = static_cast<std::int64_t>(w.use_count());
    at::Tensor z = x.matmul(w);
    z.sum().backward();
    return std::vector<at::Tensor>{z, x.grad(), w.grad(), at::tensor({uses})};
  });
}

TEST_CASE("the default dtype and the thread count are those of the first run") {
  same_both_ways([](Run& run) {
    at::Tensor x = parameter({4});
    at::Tensor y =
        run([](const at::Tensor& t) { return (t * at::arange(4) * at::full({4}, 0.1)).exp(); },
            activation(x));
    const int threads = at::get_num_threads();
    at::set_default_dtype(at::scalarTypeToTypeMeta(at::kDouble));
    at::set_num_threads(threads + 1);
    y.sum().backward();
    CHECK((at::typeMetaToScalarType(at::get_default_dtype()) == at::kDouble));
    CHECK(at::get_num_threads() == threads + 1);
    at::set_default_dtype(at::scalarTypeToTypeMeta(at::kFloat));
    at::set_num_threads(threads);
    return std::vector<at::Tensor>{y, x.grad()};
  });
}

// Divergence.

TEST_CASE("a replay that goes another way is an error that names the first tensor that differs") {
  at::Tensor x = parameter({4});
  std::string message;
  bool other_way = false;
  const auto run = [&](auto fn, CheckpointOptions options = {}) {
    other_way = false;
    at::Tensor y = checkpoint(fn, activation(x), options);
    other_way = true;
    message.clear();
    return error_id([&] { y.sum().backward(); }, &message);
  };
  const auto mentions = [&](const char* words) { return message.find(words) != std::string::npos; };

  // Another shape.
  CHECK(run([&](const at::Tensor& t) {
          return (other_way ? t.narrow(0, 0, 2) : t.narrow(0, 0, 3)).exp().sum().sin();
        }) == "LT0201");
  CHECK(mentions("number 0 of the 2"));
  CHECK(mentions("of shape [3]"));
  CHECK(mentions("of shape [2]"));
  // Another shape that no number of an op tells.
  CHECK(run([&](const at::Tensor& t) {
          return t.masked_select(at::arange(4) < (other_way ? 2 : 3)).exp();
        }) == "LT0201");
  CHECK(mentions("of shape [3]"));
  CHECK(mentions("of shape [2]"));
  // Another dtype.
  CHECK(run([&](const at::Tensor& t) {
          return t.to(other_way ? at::kDouble : at::kFloat).exp();
        }) == "LT0201");
  // Another op with the same shapes: both save their input.
  CHECK(run([&](const at::Tensor& t) { return other_way ? t.exp().cos() : t.exp().sin(); }) ==
        "LT0201");
  CHECK(mentions("number 1 of the 2"));
  CHECK(mentions("aten::sin"));
  CHECK(mentions("aten::cos"));
  // Another factor, with the same ops.
  CHECK(run([&](const at::Tensor& t) { return (t * (other_way ? 2 : 3)).exp(); }) == "LT0201");
  CHECK(mentions("numbers that they were given"));
  // An op more that saves nothing.
  CHECK(run([&](const at::Tensor& t) { return (other_way ? t + t : t).exp(); }) == "LT0201");
  // Fewer, and more.
  CHECK(run([&](const at::Tensor& t) { return other_way ? t.exp() : t.exp().sin(); }) == "LT0202");
  CHECK(mentions("saved 1 tensors"));
  CHECK(run([&](const at::Tensor& t) { return other_way ? t.exp().sin() : t.exp(); },
            CheckpointOptions{.early_stop = false}) == "LT0202");
  CHECK(!x.grad().defined());
}

TEST_CASE("a region that catches everything does not hide a divergence") {
  at::Tensor x = parameter({4});
  bool other_way = false;
  at::Tensor y = checkpoint(
      [&](const at::Tensor& t) {
        try {
          return other_way ? t.cos().sin() : t.sin().cos();
        } catch (...) {
          return t;
        }
      },
      activation(x));
  other_way = true;
  CHECK(error_id([&] { y.sum().backward(); }) == "LT0201");
}

TEST_CASE("a table that is computed once and reused is no divergence") {
  same_both_ways([](Run& run) {
    at::Tensor x = parameter({4}), table;
    at::Tensor y = run(
        [&](const at::Tensor& t) {
          if (!table.defined()) table = at::arange(4).to(at::kFloat).sin();
          return (t * table).exp();
        },
        activation(x));
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad()};
  });
}

TEST_CASE(
    "an exception in the replay leaves generators, buffers, grad mode and autocast as they were") {
  at::manual_seed(3);
  at::Generator own = at::detail::createCPUGenerator(11);
  at::Tensor x = parameter({64}), buffer = at::zeros({64});
  bool fail = false;
  at::Tensor y;
  {
    const Autocast on(true);
    y = checkpoint(
        [&](const at::Tensor& t) {
          at::Tensor u = at::dropout(t, 0.5, true) * at::empty_like(t).bernoulli_(0.5, own);
          buffer.add_(1);
          draw_by_hand(at::detail::getDefaultCPUGenerator());
          at::Tensor v = u.sin();
          if (fail) {
            c10::GradMode::set_enabled(false);
            throw std::runtime_error("mine");
          }
          return v.exp();
        },
        activation(x));
  }
  fail = true;
  at::rand({1});
  const at::Tensor state = generator_state(), own_state = own.get_state();
  const auto version = buffer._version();
  CHECK_THROWS_WITH_AS(y.sum().backward({}, true), "mine", std::runtime_error);
  CHECK(same_bits(state, generator_state()));
  CHECK(same_bits(own_state, own.get_state()));
  CHECK(same_bits(buffer, at::ones({64})));
  CHECK(buffer._version() == version);
  CHECK(c10::GradMode::is_enabled());
  CHECK(!at::autocast::is_autocast_enabled(at::kCPU));
  fail = false;
  y.sum().backward();
  CHECK(x.grad().defined());
}

// Offloading.

TEST_CASE("inputs wait on disk: memory is given back, gradients are the same") {
  for (const bool retain_graph : {false, true}) {
    same_both_ways(
        [&](Run& run) {
          at::Tensor x = parameter({128, 256}), w = parameter({256, 256});
          at::Tensor a = activation(x);
          const WeakStorage input = watch(a);
          const at::Tensor strided = a.t();
          at::Tensor y = run(
              [w](const at::Tensor& t, const at::Tensor& other) {
                CHECK(other.strides() == at::IntArrayRef({1, 256}));
                return t.matmul(w).tanh().matmul(w) + other.sin().t();
              },
              std::make_tuple(std::move(a), a.t()));
          if (run.checkpointed) CHECK(!input.expired());  // `strided` holds it
          y.sum().backward({}, retain_graph);
          if (retain_graph) y.sum().backward();
          return std::vector<at::Tensor>{y, x.grad(), w.grad()};
        },
        CheckpointOptions{.offload = Offload::kDisk});
  }
  at::Tensor x = parameter({128, 256});
  at::Tensor a = activation(x);
  const WeakStorage input = watch(a);
  at::Tensor y = checkpoint([](const at::Tensor& t) { return t.sin().exp(); }, a,
                            CheckpointOptions{.offload = Offload::kDisk});
  a = at::Tensor();
  CHECK(input.expired());
  y.sum().backward();
  CHECK(same_bits(x.grad(), (x.cos() * x.sin().exp()).detach()));
}

TEST_CASE("inputs that are in host memory already are held by reference") {
  at::Tensor a = activation(parameter({128, 256}));
  const WeakStorage input = watch(a);
  at::Tensor y = checkpoint([](const at::Tensor& t) { return t.sin().exp(); }, a,
                            CheckpointOptions{.offload = Offload::kHost});
  a = at::Tensor();
  CHECK(!input.expired());
  y.sum().backward();
  CHECK(input.expired());
}

TEST_CASE("the file has no name") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / "lowtide-offload-test";
  std::filesystem::create_directories(folder);
  at::Tensor x = parameter({128, 256});
  at::Tensor y = checkpoint(
      [](const at::Tensor& t) { return t.sin().exp(); }, activation(x),
      CheckpointOptions{.offload = Offload::kDisk, .offload_directory = folder.string()});
  CHECK(std::filesystem::is_empty(folder));
  y.sum().backward();
  std::filesystem::remove(folder);
}

TEST_CASE("a folder that is missing and a full disk are errors before anything is lost") {
  at::Tensor x = parameter({128, 256});
  at::Tensor a = activation(x);
  const auto region = [](const at::Tensor& t) { return t.sin().exp(); };
  CHECK(error_id([&] {
          checkpoint(region, a,
                     CheckpointOptions{.offload = Offload::kDisk, .offload_directory = "/no/such"});
        }) == "LT0210");

  struct rlimit before;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {100 << 10, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string message;
  const std::string id = error_id(
      [&] { checkpoint(region, a, CheckpointOptions{.offload = Offload::kDisk}); }, &message);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  CHECK(id == "LT0210");
  CHECK(message.find("stopped after 100 KiB") != std::string::npos);

  region(a).sum().backward();
  CHECK(same_bits(x.grad(), (x.cos() * x.sin().exp()).detach()));
}

}  // namespace
}  // namespace lowtide::testing
