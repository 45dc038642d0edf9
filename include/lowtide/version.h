#pragma once
// The version of Lowtide. CMake and the command line read it from here; nothing else repeats it.

#define LOWTIDE_VERSION_MAJOR 0
#define LOWTIDE_VERSION_MINOR 1
#define LOWTIDE_VERSION_PATCH 0
#define LOWTIDE_VERSION_STRING "0.1.0"
