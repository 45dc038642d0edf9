// Damaged files: each must be read or refused with one of the reader's own errors, without a crash,
// in bounded memory.

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <random>
#include <set>

#include "lowtide/error.h"
#include "src/evidence/snapshot_analysis.h"
#include "src/evidence/snapshot_reader.h"
#include "tests/evidence/made_snapshots.h"
#include "tests/evidence/real_snapshots.h"

namespace {

std::atomic<std::size_t> heap_now{0};
std::atomic<std::size_t> heap_most{0};

// A block's size stands before it.
constexpr std::size_t kHeader = 16;

void* counted(std::size_t size) {
  auto* block = static_cast<char*>(std::malloc(size + kHeader));
  if (block == nullptr) throw std::bad_alloc();
  *reinterpret_cast<std::size_t*>(block) = size;
  const std::size_t now = heap_now.fetch_add(size) + size;
  if (now > heap_most.load()) heap_most = now;
  return block + kHeader;
}

void uncounted(void* pointer) {
  if (pointer == nullptr) return;
  char* block = static_cast<char*>(pointer) - kHeader;
  heap_now -= *reinterpret_cast<std::size_t*>(block);
  std::free(block);
}

}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
// libstdc++ sends these to the ones above; a sanitizer has its own.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return counted(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t size, const std::nothrow_t& tag) noexcept {
  return operator new(size, tag);
}
void operator delete(void* pointer) noexcept { uncounted(pointer); }
void operator delete[](void* pointer) noexcept { uncounted(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { uncounted(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { uncounted(pointer); }

using namespace lowtide;

namespace {

// The buffer, the tables of known names, the lists that grow by doubling.
constexpr std::size_t kFixedBytes = std::size_t{1} << 20;

std::string damaged(std::string bytes, std::mt19937_64& random) {
  const std::size_t hits = 1 + random() % 4;
  for (std::size_t hit = 0; hit < hits && !bytes.empty(); ++hit) {
    const std::size_t at = random() % bytes.size();
    switch (random() % 6) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.erase(at, 1 + random() % 64);
        break;
      case 4:
        bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 200));
        break;
      default:  // a length or a count that is as large as can be
        for (std::size_t i = at; i < std::min(at + 4, bytes.size()); ++i) bytes[i] = '\xff';
    }
  }
  return bytes;
}

void check_damaged(const std::string& whole, int times, unsigned seed) {
  static const std::set<std::string> kKnown{"LT0711", "LT0712", "LT0713", "LT0714", "LT0715"};
  std::mt19937_64 random(seed);
  for (int i = 0; i < times; ++i) {
    const std::string bytes = damaged(whole, random);
    CAPTURE(i);
    ByteSource source("damaged", std::as_bytes(std::span(bytes)));
    const std::size_t before = heap_now;
    heap_most = before;
    std::size_t used = 0;
    std::string refusal = "read";
    try {
      const Snapshot snapshot = read_snapshot(source);
      used = heap_most - before;
      analyse(snapshot);
    } catch (const FormatError& error) {
      if (used == 0) used = heap_most - before;
      refusal = error.what();
      REQUIRE(kKnown.count(error.id()) == 1);
    }
    CAPTURE(refusal);
    REQUIRE(used <= 2 * bytes.size() + kFixedBytes);
  }
}

}  // namespace

TEST_CASE("2,000 damaged made snapshots are read or refused, in bounded memory") {
  const MadeSnapshot made = small_snapshot();
  check_damaged(made.pickle(Dialect::kPython, 4, {.unknown_keys = true}), 500, 1);
  check_damaged(made.pickle(Dialect::kPython, 2, {.shared = false}), 500, 2);
  check_damaged(made.pickle(Dialect::kLibtorch, 2, {}), 500, 3);
  check_damaged(made.pickle(Dialect::kPython, 5, {.history_form = true}), 500, 4);
}

TEST_SUITE("slow") {
  TEST_CASE("10,000 damaged real snapshots are read or refused, in memory of twice the file") {
    const std::vector<std::string> paths = real_snapshots();
    unsigned seed = 10;
    for (const std::string& path : paths) {
      CAPTURE(path);
      check_damaged(read_bytes(path), 10'000 / static_cast<int>(paths.size()) + 1, seed++);
    }
  }
}
