# Run by ctest: install, configure and build the example against the install, run it, and run the
# installed program from another folder.
set(prefix "${BINARY_DIR}/install_test/prefix")
set(example "${BINARY_DIR}/install_test/example")
file(REMOVE_RECURSE "${BINARY_DIR}/install_test")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result)
    message(FATAL_ERROR "failed (${result}): ${ARGN}\n${output}")
  endif()
  message(STATUS "${output}")
endfunction()

run("${CMAKE_COMMAND}" --install "${BINARY_DIR}" --prefix "${prefix}")
run("${CMAKE_COMMAND}" -S "${SOURCE_DIR}/examples/cmake_project" -B "${example}" -G Ninja
    -DCMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=${prefix}" "-DLOWTIDE_TORCH_ROOT=${TORCH_ROOT}")
run("${CMAKE_COMMAND}" --build "${example}")
run("${example}/example")
run("${prefix}/bin/lowtide" --version)
run("${prefix}/bin/lowtide" doctor)
