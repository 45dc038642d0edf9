# Finds the libtorch of a Python environment without importing it, and holds it to the range that
# Lowtide was checked against. Defines lowtide_torch, the interface target that torch parts link.
set(LOWTIDE_TORCH_MIN 2.13.0)
set(LOWTIDE_TORCH_BELOW 2.14.0) # first version not checked yet
set(_torch_remedy
    "install it with:  ${PROJECT_SOURCE_DIR}/scripts/setup   or, in your own environment:  pip install torch==2.13.0")

if(NOT Torch_DIR)
  # The project's own environment first, then the active one.
  find_program(LOWTIDE_PYTHON NAMES python python3
               HINTS "${PROJECT_SOURCE_DIR}/.venv/bin" "$ENV{VIRTUAL_ENV}/bin" NO_DEFAULT_PATH)
  find_program(LOWTIDE_PYTHON NAMES python3 python)
  if(LOWTIDE_PYTHON)
    execute_process(
      COMMAND "${LOWTIDE_PYTHON}" -c
              "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '', end='')"
      OUTPUT_VARIABLE _torch_root)
    if(_torch_root)
      list(APPEND CMAKE_PREFIX_PATH "${_torch_root}/share/cmake")
    endif()
  endif()
endif()

# Torch's own config warns that kineto's static library is missing from the wheel; it is not needed.
set(_saved_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
find_package(Torch CONFIG QUIET)
set(CMAKE_MESSAGE_LOG_LEVEL "${_saved_log_level}")

if(NOT Torch_FOUND)
  message(FATAL_ERROR "libtorch was not found (asked: ${LOWTIDE_PYTHON}); ${_torch_remedy}")
endif()
if(Torch_VERSION VERSION_LESS LOWTIDE_TORCH_MIN OR Torch_VERSION VERSION_GREATER_EQUAL LOWTIDE_TORCH_BELOW)
  message(FATAL_ERROR "found torch ${Torch_VERSION} in ${Torch_DIR}, but this version of Lowtide is "
                      "checked with torch >= ${LOWTIDE_TORCH_MIN}, < ${LOWTIDE_TORCH_BELOW}; ${_torch_remedy}")
endif()
message(STATUS "torch ${Torch_VERSION}: ${TORCH_INSTALL_PREFIX}")

add_library(lowtide_torch INTERFACE)
target_link_libraries(lowtide_torch INTERFACE torch)
