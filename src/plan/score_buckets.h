#pragma once
// Storages by their cost for each byte: a heap for every eighth of its octaves, oldest use on top.
//
// Within a heap the costs are alike, so its top, the one longest unused, is the one to drop; and a
// choice compares tops only, of which there are few, where a scan would weigh everything.
// Keys are lower bounds: a storage that is used later sinks when it is met at the top, so that a
// use costs nothing here.
//
// Internal to the online policy.

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace lowtide {

class ScoreBuckets {
 public:
  // Where a storage stands; kept by the owner, by id.
  struct Place {
    std::uint32_t position = 0;
    std::uint16_t bucket = 0;
  };

  // A positive float's exponent and its first mantissa bits: eight buckets for each octave. With
  // two of them the choice is up to 0.02 of the step's time worse on wide graphs.
  static constexpr int kMantissaBits = 3;
  static constexpr std::size_t kBuckets = std::size_t{256} << kMantissaBits;
  static std::uint16_t bucket_of(float density) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(density) >>
                                      (23 - kMantissaBits));
  }

  template <typename Places>
  void insert(std::uint32_t id, float density, std::uint64_t last_use_ns, Places&& place_of) {
    const std::uint16_t bucket = bucket_of(density);
    std::vector<Entry>& heap = heaps_[bucket];
    heap.push_back({last_use_ns, density, id});
    place_of(id).bucket = bucket;
    occupied_[bucket / 64] |= std::uint64_t{1} << (bucket % 64);
    sift_up(heap, heap.size() - 1, place_of);
  }

  template <typename Places>
  void remove(std::uint32_t id, Places&& place_of) {
    const Place place = place_of(id);
    std::vector<Entry>& heap = heaps_[place.bucket];
    const std::size_t hole = place.position;
    const Entry last = heap.back();
    heap.pop_back();
    if (hole < heap.size()) {
      heap[hole] = last;
      place_of(last.id).position = static_cast<std::uint32_t>(hole);
      sift_down(heap, hole, place_of);
      sift_up(heap, place_of(last.id).position, place_of);
    }
    if (heap.empty()) {
      occupied_[place.bucket / 64] &= ~(std::uint64_t{1} << (place.bucket % 64));
    }
  }

  // The id whose density / sqrt(idle) is lowest among the tops. keep(id) may remove the id from
  // here and return false; last_use(id) is its newest use.
  template <typename Places, typename LastUse, typename Keep>
  std::optional<std::uint32_t> best(std::uint64_t clock_ns, Places&& place_of, LastUse&& last_use,
                                    Keep&& keep) {
    std::optional<std::uint32_t> found;
    float found_score = std::numeric_limits<float>::infinity();
    const float longest_idle = static_cast<float>(clock_ns) + kIdleOffsetNs;
    for (std::size_t word = 0; word < occupied_.size(); ++word) {
      std::uint64_t bits = occupied_[word];
      while (bits != 0) {
        const std::size_t bucket = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
        bits &= bits - 1;
        std::vector<Entry>& heap = heaps_[bucket];
        while (!heap.empty()) {
          const std::uint32_t id = heap.front().id;
          const std::uint64_t newest = last_use(id);
          if (heap.front().last_use_ns != newest) {
            heap.front().last_use_ns = newest;
            sift_down(heap, 0, place_of);
          } else if (keep(id)) {
            break;
          }
        }
        if (heap.empty()) continue;
        // Squares: no root, the same order.
        const float square = heap.front().density * heap.front().density;
        const float idle = static_cast<float>(clock_ns - heap.front().last_use_ns) + kIdleOffsetNs;
        if (square / idle < found_score) {
          found_score = square / idle;
          found = heap.front().id;
        }
        // Later buckets are dearer, and nothing has been idle for longer than all time. A bucket's
        // costs differ by an eighth: 1.27 is a little more than its square.
        if (square / longest_idle > 1.27f * found_score) return found;
      }
    }
    return found;
  }

 private:
  struct Entry {
    std::uint64_t last_use_ns;
    float density;
    std::uint32_t id;
  };
  static constexpr float kIdleOffsetNs = 1000.0f;

  template <typename Places>
  static void sift_up(std::vector<Entry>& heap, std::size_t at, Places&& place_of) {
    const Entry moved = heap[at];
    while (at > 0) {
      const std::size_t parent = (at - 1) / 2;
      if (heap[parent].last_use_ns <= moved.last_use_ns) break;
      heap[at] = heap[parent];
      place_of(heap[at].id).position = static_cast<std::uint32_t>(at);
      at = parent;
    }
    heap[at] = moved;
    place_of(moved.id).position = static_cast<std::uint32_t>(at);
  }

  template <typename Places>
  static void sift_down(std::vector<Entry>& heap, std::size_t at, Places&& place_of) {
    const Entry moved = heap[at];
    for (;;) {
      std::size_t child = 2 * at + 1;
      if (child >= heap.size()) break;
      if (child + 1 < heap.size() && heap[child + 1].last_use_ns < heap[child].last_use_ns) {
        ++child;
      }
      if (heap[child].last_use_ns >= moved.last_use_ns) break;
      heap[at] = heap[child];
      place_of(heap[at].id).position = static_cast<std::uint32_t>(at);
      at = child;
    }
    heap[at] = moved;
    place_of(moved.id).position = static_cast<std::uint32_t>(at);
  }

  std::array<std::vector<Entry>, kBuckets> heaps_;
  std::array<std::uint64_t, kBuckets / 64> occupied_{};
};

}  // namespace lowtide
