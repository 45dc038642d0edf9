# lowtide_precompile(<target>): libtorch's core headers, parsed once for all targets that use them.
# They take 4 of the 8 seconds of a typical file, and half of a clean build.
#
# The sanitizer build is made without, so a file that forgets an #include is found there.
option(LOWTIDE_PRECOMPILE "Parse libtorch's core headers once" "${LOWTIDE_DEVELOPER_MODE}")

if(LOWTIDE_PRECOMPILE)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/precompiled.cpp" CONTENT "")
  add_library(lowtide_precompiled OBJECT "${PROJECT_BINARY_DIR}/precompiled.cpp")
  target_link_libraries(lowtide_precompiled PRIVATE lowtide_build_flags lowtide::torch)
  target_precompile_headers(
    lowtide_precompiled PRIVATE <ATen/ATen.h> <torch/csrc/autograd/function.h>
    <torch/csrc/autograd/variable.h>)
  # What ccache must be told so that it takes precompiled headers at all.
  target_compile_options(lowtide_precompiled PRIVATE -fpch-preprocess)
endif()

function(lowtide_precompile target)
  if(NOT LOWTIDE_PRECOMPILE)
    return()
  endif()
  get_target_property(_type ${target} TYPE)
  if(_type STREQUAL EXECUTABLE)
    # As the libraries, with which it shares the precompiled header.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_compile_options(${target} PRIVATE -fpch-preprocess)
  target_precompile_headers(${target} REUSE_FROM lowtide_precompiled)
endfunction()
