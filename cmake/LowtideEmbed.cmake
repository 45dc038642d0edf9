# Run as a script: writes OUTPUT, which defines embedded_errors() from the files in FOLDER.
file(GLOB _files "${FOLDER}/*.json")
list(SORT _files)
set(_text "#include \"src/diagnose/embedded_errors.h\"\n\nnamespace lowtide {\n\n"
          "const std::vector<EmbeddedError>& embedded_errors() {\n"
          "  static const std::vector<EmbeddedError> all{\n")
set(_rows "")
foreach(_file ${_files})
  get_filename_component(_name "${_file}" NAME)
  file(READ "${_file}" _content)
  string(APPEND _rows "      {\"${_name}\", R\"json(${_content})json\"},\n")
endforeach()
string(CONCAT _text ${_text})
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "${_text}@_rows@  };\n  return all;\n}\n\n}  // namespace lowtide\n" @ONLY)
