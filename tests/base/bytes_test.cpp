#include "lowtide/bytes.h"

#include <doctest/doctest.h>

#include "lowtide/error.h"

using namespace lowtide;  // the tests of one header

TEST_CASE("a byte count is printed with three significant digits") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1024) == "1.00 KiB");
  CHECK(format_bytes(6_GiB) == "6.00 GiB");
  CHECK(format_bytes(1'048'575) == "1.00 MiB");
  CHECK(format_bytes(10_MiB + 512_KiB) == "10.5 MiB");
  CHECK(format_bytes(100_MiB) == "100 MiB");
  CHECK(format_bytes(~Bytes{0}) == "16.0 EiB");
}

TEST_CASE("binary and decimal units are told apart") {
  CHECK(parse_bytes("4096") == 4096);
  CHECK(parse_bytes("6GiB") == 6_GiB);
  CHECK(parse_bytes("6 GiB") == 6_GiB);
  CHECK(parse_bytes("1.5MiB") == 1_MiB + 512_KiB);
  CHECK(parse_bytes("2GB") == 2'000'000'000);
  CHECK(parse_bytes("0B") == 0);
}

TEST_CASE("a byte count that cannot be read is refused with an example") {
  for (const char* text : {"", "GiB", "-1", "6 gigs", "6GiB ", "1.", ".5GiB", "1e9", "0x10",
                           "99999999999999999999", "17000000TiB"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_bytes(text), doctest::Contains("LT0101"), UsageError);
  }
}
