// Writes a snapshot with libtorch's own pickler: how libtorch.pickle was made. Not part of the
// build.
//
//   T=.venv/lib/python3.11/site-packages/torch
//   g++ -std=c++20 -I$T/include tests/data/snapshots/make_libtorch_snapshot.cpp -L$T/lib
//   -ltorch_cpu -lc10
//     -Wl,-rpath,$T/lib -o make_libtorch_snapshot && ./make_libtorch_snapshot libtorch.pickle 9

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using Dict = c10::Dict<c10::IValue, c10::IValue>;
using List = c10::List<c10::IValue>;

Dict dict(const std::vector<std::pair<const char*, c10::IValue>>& items) {
  Dict made(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& [key, value] : items) made.insert(key, value);
  return made;
}

List list(const std::vector<c10::IValue>& elements) {
  List made(c10::AnyType::get());
  for (const c10::IValue& element : elements) made.push_back(element);
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  constexpr std::int64_t kBase = 0x7f0000000000;
  constexpr std::int64_t kSegment = 2097152;
  const List blocks = list({dict({{"address", kBase},
                                  {"size", 512},
                                  {"requested_size", 100},
                                  {"state", "active_allocated"},
                                  {"frames", list({})}}),
                            dict({{"address", kBase + 512},
                                  {"size", kSegment - 512},
                                  {"requested_size", 0},
                                  {"state", "inactive"},
                                  {"frames", list({})}})});
  const std::tuple<std::int64_t, std::int64_t> pool(0, 0);
  const Dict segment = dict({{"device", 0},
                             {"address", kBase},
                             {"total_size", kSegment},
                             {"stream", 0},
                             {"segment_type", "small"},
                             {"segment_pool_id", pool},
                             {"is_expandable", false},
                             {"frames", list({})},
                             {"blocks", blocks}});
  std::vector<c10::IValue> frames;
  for (int i = 0; i < 5; ++i) {
    frames.push_back(dict(
        {{"name", "train_step(int)"}, {"filename", "/home/ann/job/train.cpp"}, {"line", 10 + i}}));
  }
  const List stack = list(frames);
  std::vector<c10::IValue> events;
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    const char* const actions[] = {"alloc", "free_requested", "free_completed"};
    events.push_back(dict({{"action", actions[i % 3]},
                           {"addr", kBase + 512},
                           {"size", 700},
                           {"stream", 0},
                           {"time_us", std::int64_t{1700000000000000} + i},
                           {"compile_context", "N/A"},
                           {"user_metadata", ""},
                           {"frames", stack}}));
  }
  const Dict snapshot =
      dict({{"segments", list({segment})},
            {"device_traces", list({list(events), list({})})},
            {"allocator_settings", dict({{"PYTORCH_CUDA_ALLOC_CONF", ""},
                                         {"max_split_size", -1},
                                         {"garbage_collection_threshold", 0.0},
                                         {"expandable_segments", false},
                                         {"roundup_power2_divisions", dict({{"1", 0}})}})},
            {"external_annotations", list({})}});
  std::ofstream out(argv[1], std::ios::binary);
  // As torch::cuda::_memory_snapshot_pickled does: no type tags.
  torch::jit::Pickler pickler([&](const char* data, std::size_t size) { out.write(data, size); },
                              nullptr, nullptr, nullptr, nullptr, false);
  pickler.protocol();
  pickler.pushIValue(snapshot);
  pickler.stop();
  return out.good() ? 0 : 1;
}
