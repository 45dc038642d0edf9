# Fails if an object of the attention loops defines a symbol that other objects could come to share:
# its code may need instructions that the machine lacks. See Note [One set of flags per object].
#   cmake -DNM=nm -DOBJECTS=a.o,b.o -P kernel_symbols.cmake
string(REPLACE "," ";" objects "${OBJECTS}")
list(FILTER objects INCLUDE REGEX "/kernels/")
list(LENGTH objects count)
if(count EQUAL 0)
  message(FATAL_ERROR "no object of the loops among ${OBJECTS}")
endif()
foreach(object IN LISTS objects)
  execute_process(COMMAND "${NM}" -C --defined-only --extern-only "${object}"
                  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "[^\n]* __odr_asan[^\n]*\n" "" symbols "${symbols}") # the sanitizer's own
  string(REGEX REPLACE "\n+$" "" symbols "${symbols}")
  if(NOT symbols MATCHES "^[0-9a-f]+ [DR] lowtide::kMsDeformAttn[A-Za-z0-9]+$")
    message(FATAL_ERROR "${object} defines more than its one table of kernels:\n${symbols}")
  endif()
endforeach()
message(STATUS "${count} objects define one symbol each")
