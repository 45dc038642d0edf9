#include "src/allocator/allocator_settings.h"

#include <doctest/doctest.h>

#include <string>

#include "lowtide/error.h"

using namespace lowtide;  // the tests of one header

TEST_CASE("sizes are rounded up to 512, and to parts of a power of two when asked") {
  AllocatorSettings settings;
  CHECK(settings.rounded(0) == 512);
  CHECK(settings.rounded(1) == 512);
  CHECK(settings.rounded(513) == 1024);
  CHECK(settings.rounded(1200 * 1024 + 1) == 1200 * 1024 + 512);
  apply_setting(settings, "roundup_power2_divisions:4");
  CHECK(settings.rounded(1200) == 1536);          // too small for parts
  CHECK(settings.rounded(1200_MiB) == 1280_MiB);  // 1024, 1280, 1536, 1792
  CHECK(settings.rounded(1024_MiB) == 1024_MiB);
  CHECK(settings.rounded(1281_MiB) == 1536_MiB);
}

TEST_CASE("a list of divisions holds from each size on") {
  AllocatorSettings settings;
  apply_setting(settings, "roundup_power2_divisions:[64:2,256:8,>:4]");
  CHECK(settings.roundup_power2_divisions ==
        std::array<std::uint32_t, 16>{2, 2, 2, 2, 2, 2, 2, 0, 8, 4, 4, 4, 4, 4, 4, 4});
}

TEST_CASE("segments are 2 MiB, 20 MiB, or the request in steps of 2 MiB") {
  AllocatorSettings settings;
  CHECK(settings.segment_for(512) == 2_MiB);
  CHECK(settings.segment_for(1_MiB) == 2_MiB);
  CHECK(settings.segment_for(1_MiB + 512) == 20_MiB);
  CHECK(settings.segment_for(10_MiB) == 10_MiB);
  CHECK(settings.segment_for(10_MiB + 512) == 12_MiB);
  apply_setting(settings, "large_segment_size_mb:40");
  CHECK(settings.segment_for(2_MiB) == 40_MiB);
}

TEST_CASE("settings that torch would refuse are refused with the key") {
  for (const char* setting :
       {"max_split_size_mb", "max_split_size_mb:20", "max_split_size_mb:many", "expandable:True",
        "expandable_segments:yes", "garbage_collection_threshold:0",
        "garbage_collection_threshold:1", "garbage_collection_threshold:nan",
        "roundup_power2_divisions:3", "roundup_power2_divisions:[3:4]",
        "roundup_power2_divisions:[4]", "large_segment_size_mb:41"}) {
    CAPTURE(setting);
    AllocatorSettings settings;
    try {
      apply_setting(settings, setting);
      FAIL("taken");
    } catch (const UsageError& error) {
      CHECK(error.id() == "LT0720");
      CHECK(std::string(error.what()).find(setting) != std::string::npos);
    }
  }
  AllocatorSettings settings;
  apply_setting(settings, "max_split_size_mb:128");
  apply_setting(settings, "garbage_collection_threshold:0.8");
  apply_setting(settings, "expandable_segments:True");
  CHECK(settings.max_split_size == 128_MiB);
  CHECK(settings.garbage_collection_threshold == 0.8);
  CHECK(settings.expandable_segments);
}
