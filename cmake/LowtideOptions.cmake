# Options, and the flags of our own targets as one interface target. CMAKE_CXX_FLAGS is never edited.
include(GNUInstallDirs)

option(LOWTIDE_DEVELOPER_MODE "Build tests and benchmarks, warnings are errors" ${PROJECT_IS_TOP_LEVEL})
option(LOWTIDE_PYTHON_PACKAGE "Build the Python package" ON)
option(LOWTIDE_SANITIZE "Build with the address and undefined-behaviour sanitizers" OFF)
option(LOWTIDE_CLANG_TIDY "Run clang-tidy on every source file" OFF)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};$ORIGIN")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

add_library(lowtide_build_flags INTERFACE)
target_include_directories(lowtide_build_flags INTERFACE "${PROJECT_SOURCE_DIR}")
# libtorch is built with NDEBUG, and classes in its headers (RecordFunction) have members that depend
# on it: a build without would disagree about their layout.
target_compile_definitions(lowtide_build_flags INTERFACE $<$<CONFIG:Debug>:NDEBUG>)
target_compile_options(lowtide_build_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor)
if(LOWTIDE_DEVELOPER_MODE)
  target_compile_options(lowtide_build_flags INTERFACE -Werror)
endif()
if(LOWTIDE_SANITIZE)
  target_compile_options(
    lowtide_build_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined
                                  -fno-omit-frame-pointer
                                  -Wno-maybe-uninitialized) # false alarms in instrumented code
  target_link_options(lowtide_build_flags INTERFACE -fsanitize=address,undefined)
endif()

find_program(LOWTIDE_CCACHE ccache)
if(LOWTIDE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness is what precompiled headers need; without it they are never cached.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${LOWTIDE_CCACHE}")
endif()
find_program(LOWTIDE_MOLD mold)
if(LOWTIDE_MOLD)
  target_link_options(lowtide_build_flags INTERFACE -fuse-ld=mold)
endif()
if(LOWTIDE_CLANG_TIDY)
  find_program(LOWTIDE_CLANG_TIDY_PROGRAM NAMES clang-tidy clang-tidy-19 clang-tidy-16 REQUIRED)
  set(CMAKE_CXX_CLANG_TIDY "${LOWTIDE_CLANG_TIDY_PROGRAM}")
endif()
