# A torch that is too old, too new or not there stops the configure step with the exact pip line.
function(expect_refusal name version expected)
  set(root "${WORK_DIR}/${name}")
  file(REMOVE_RECURSE "${root}")
  file(MAKE_DIRECTORY "${root}/torch/lib")
  if(version)
    file(WRITE "${root}/torch/version.py" "__version__ = '${version}'\n")
    file(TOUCH "${root}/torch/lib/libtorch_cpu.so" "${root}/torch/lib/libc10.so")
  endif()
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${SOURCE_DIR}" -B "${root}/build" -G Ninja
            "-DLOWTIDE_TORCH_ROOT=${root}/torch"
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # CMake wraps its messages
  if(result EQUAL 0)
    message(FATAL_ERROR "${name}: the configure step went through")
  endif()
  foreach(text "${expected}" "pip install torch==2.13.0")
    string(FIND "${output}" "${text}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "${name}: \"${text}\" is not in:\n${output}")
    endif()
  endforeach()
endfunction()

expect_refusal(too_new "2.14.0+cpu" "found torch 2.14.0")
expect_refusal(too_old "2.9.1" "found torch 2.9.1")
expect_refusal(absent "" "version.py is not in it")
