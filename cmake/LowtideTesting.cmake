# lowtide_add_tests(<part> SOURCES a_test.cpp ... LINK target ... [LABEL fast|torch] [WITH_SLOW])
#
# One doctest program a part. Its cases run as the ctest entry <part> with the given label (default
# fast). WITH_SLOW: cases in doctest's test suite "slow" run as <part>.slow with the label slow.
function(lowtide_add_tests part)
  cmake_parse_arguments(ARG "WITH_SLOW" "LABEL" "SOURCES;LINK" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL fast)
  endif()
  set(target "lowtide_${part}_tests")
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE lowtide_build_flags lowtide_doctest_main ${ARG_LINK})
  # Tests wait for the compiler more than for themselves.
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_compile_definitions(
    ${target} PRIVATE LOWTIDE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                      LOWTIDE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  add_test(NAME ${part} COMMAND ${target} --test-suite-exclude=slow)
  set_tests_properties(${part} PROPERTIES LABELS ${ARG_LABEL})
  if(ARG_WITH_SLOW)
    add_test(NAME ${part}.slow COMMAND ${target} --test-suite=slow)
    set_tests_properties(${part}.slow PROPERTIES LABELS slow)
  endif()
endfunction()
