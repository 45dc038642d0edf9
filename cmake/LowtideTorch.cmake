# Finds the libtorch inside a Python environment without importing it, and holds it to the range
# that Lowtide was checked against. Installed beside lowtideConfig.cmake, which uses it too.
#
#   LOWTIDE_TORCH_ROOT  the `torch` folder of a Python environment; found when it is not set
#
# Defines the imported target lowtide::torch and Torch_VERSION. Torch's own CMake package is not
# used: with a CUDA build of torch it asks for a whole CUDA toolkit, which Lowtide does not need.
set(LOWTIDE_TORCH_MIN 2.13.0)
set(LOWTIDE_TORCH_BELOW 2.14.0) # the first version that was not checked
set(_torch_remedy "install it with:  pip install torch==2.13.0")

# A wheel is built for the Python that builds it. Else the project's own environment first, then the
# active one, then any Python.
if(SKBUILD AND Python_EXECUTABLE)
  set(LOWTIDE_PYTHON "${Python_EXECUTABLE}")
endif()
find_program(LOWTIDE_PYTHON NAMES python python3 NO_DEFAULT_PATH
             PATHS "${PROJECT_SOURCE_DIR}/.venv/bin" "$ENV{VIRTUAL_ENV}/bin")
find_program(LOWTIDE_PYTHON NAMES python3 python)
if(NOT LOWTIDE_TORCH_ROOT)
  if(LOWTIDE_PYTHON)
    execute_process(
      COMMAND "${LOWTIDE_PYTHON}" -c
              "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '', end='')"
      OUTPUT_VARIABLE _torch_root)
  endif()
  if(NOT _torch_root)
    message(FATAL_ERROR "torch was not found in the Python environment of ${LOWTIDE_PYTHON}; ${_torch_remedy}")
  endif()
  set(LOWTIDE_TORCH_ROOT "${_torch_root}" CACHE PATH "The torch folder of a Python environment")
endif()

foreach(_file version.py lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS "${LOWTIDE_TORCH_ROOT}/${_file}")
    message(FATAL_ERROR "LOWTIDE_TORCH_ROOT is ${LOWTIDE_TORCH_ROOT}, but ${_file} is not in it; ${_torch_remedy}, "
                        "then delete the build folder or set LOWTIDE_TORCH_ROOT")
  endif()
endforeach()
file(STRINGS "${LOWTIDE_TORCH_ROOT}/version.py" _version_line REGEX "^__version__")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" Torch_VERSION "${_version_line}")
if(Torch_VERSION VERSION_LESS LOWTIDE_TORCH_MIN OR Torch_VERSION VERSION_GREATER_EQUAL LOWTIDE_TORCH_BELOW)
  message(FATAL_ERROR "found torch ${Torch_VERSION} in ${LOWTIDE_TORCH_ROOT}, but this version of Lowtide is "
                      "checked with torch >= ${LOWTIDE_TORCH_MIN}, < ${LOWTIDE_TORCH_BELOW}; ${_torch_remedy}")
endif()

# libtorch's CUDA side, for reports of CUDA memory: its libraries, and the CUDA runtime's headers,
# which torch's pip packages bring along.
if(EXISTS "${LOWTIDE_TORCH_ROOT}/lib/libtorch_cuda.so")
  find_path(LOWTIDE_CUDA_INCLUDE_DIR cuda_runtime_api.h
            PATHS "${LOWTIDE_TORCH_ROOT}/../nvidia/cu13/include"
                  "${LOWTIDE_TORCH_ROOT}/../nvidia/cuda_runtime/include" /usr/local/cuda/include)
  if(LOWTIDE_CUDA_INCLUDE_DIR AND NOT TARGET lowtide::torch_cuda)
    add_library(lowtide::torch_cuda INTERFACE IMPORTED)
    target_include_directories(lowtide::torch_cuda SYSTEM INTERFACE "${LOWTIDE_CUDA_INCLUDE_DIR}")
    target_link_libraries(
      lowtide::torch_cuda INTERFACE "${LOWTIDE_TORCH_ROOT}/lib/libtorch_cuda.so"
                                    "${LOWTIDE_TORCH_ROOT}/lib/libc10_cuda.so")
  endif()
endif()

if(NOT TARGET lowtide::torch)
  add_library(lowtide::torch INTERFACE IMPORTED)
  target_include_directories(
    lowtide::torch SYSTEM INTERFACE "${LOWTIDE_TORCH_ROOT}/include"
                                    "${LOWTIDE_TORCH_ROOT}/include/torch/csrc/api/include")
  target_link_libraries(
    lowtide::torch INTERFACE "${LOWTIDE_TORCH_ROOT}/lib/libtorch.so"
                             "${LOWTIDE_TORCH_ROOT}/lib/libtorch_cpu.so"
                             "${LOWTIDE_TORCH_ROOT}/lib/libc10.so")
  target_compile_features(lowtide::torch INTERFACE cxx_std_20)
endif()
