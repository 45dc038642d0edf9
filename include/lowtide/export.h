#pragma once
// Symbol visibility. Everything is hidden by default; what users call carries LOWTIDE_API.

#if defined(__GNUC__)
#define LOWTIDE_API __attribute__((visibility("default")))
#else
#define LOWTIDE_API
#endif
