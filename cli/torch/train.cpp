#include "cli/verb.h"
#include "lowtide/error.h"

extern "C" LOWTIDE_API int lowtide_train(const lowtide::Arguments&) {
  throw lowtide::UsageError("LT0001", "not built yet");
}
