#pragma once
// LOWTIDE_ASSERT(condition): what only a bug of Lowtide's can break. Never reachable from user
// input.

#include "lowtide/error.h"
#include "src/base/text.h"

#define LOWTIDE_ASSERT(condition)                                                           \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      throw ::lowtide::InternalError(                                                       \
          "LT0001", ::lowtide::concat("internal check failed at ", __FILE__, ":", __LINE__, \
                                      ": " #condition ". Please report this as a bug"));    \
    }                                                                                       \
  } while (false)
