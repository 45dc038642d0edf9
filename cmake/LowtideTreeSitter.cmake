# lowtide_tree_sitter: the tree-sitter parser and its Python grammar, compiled from the sources that
# scripts/setup fetches.
set(LOWTIDE_SOURCES_DIR "${PROJECT_SOURCE_DIR}/.venv/share/lowtide-sources"
    CACHE PATH "Where scripts/setup puts the sources of tree-sitter")

set(_core "${LOWTIDE_SOURCES_DIR}/tree-sitter-0.26.1/tree_sitter/core/lib")
set(_grammar "${LOWTIDE_SOURCES_DIR}/tree-sitter-python-0.25.0/src")
set(_scanner "${LOWTIDE_SOURCES_DIR}/tree-sitter-python-0.23.6/src/scanner.c")
foreach(_file "${_core}/src/lib.c" "${_grammar}/parser.c" "${_scanner}")
  if(NOT EXISTS "${_file}")
    message(FATAL_ERROR "lowtide lint is built on tree-sitter, whose source ${_file} is missing. "
                        "Fetch it with scripts/setup, or say where it is with -DLOWTIDE_SOURCES_DIR=DIR.")
  endif()
endforeach()

add_library(lowtide_tree_sitter STATIC "${_core}/src/lib.c" "${_grammar}/parser.c" "${_scanner}")
target_include_directories(lowtide_tree_sitter SYSTEM PUBLIC "${_core}/include"
                                                      PRIVATE "${_core}/src" "${_grammar}")
set_target_properties(lowtide_tree_sitter PROPERTIES C_STANDARD 11 C_EXTENSIONS ON)
target_compile_options(lowtide_tree_sitter PRIVATE -w)
