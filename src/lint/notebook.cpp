#include "src/lint/notebook.h"

#include "src/base/json.h"

namespace lowtide::lint {

NotebookSource read_notebook(std::string_view json) {
  const Json notebook = parse_json(json, 256);
  NotebookSource out;
  std::uint32_t number = 0;
  for (const Json& cell : notebook.at("cells").as_array()) {
    ++number;
    if (cell.at("cell_type").as_string() != "code") continue;
    std::string text;
    const Json& source = cell.at("source");
    if (source.is_string()) {
      text = source.as_string();
    } else {
      for (const Json& line : source.as_array()) text += line.as_string();
    }
    if (text.empty()) continue;
    if (text.back() != '\n') text += '\n';
    // A cell magic makes the whole cell something else, but for the ones that time or capture it.
    const bool other =
        text.rfind("%%", 0) == 0 && text.rfind("%%time", 0) != 0 && text.rfind("%%capture", 0) != 0;
    std::uint32_t line = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      const std::size_t first = text.find_first_not_of(" \t", begin);
      if (first < end &&
          (other || text[first] == '%' || text[first] == '!' || text[first] == '?')) {
        text[first] = '#';
      }
      out.places.push_back({number, ++line});
      begin = end + 1;
    }
    out.python += text;
  }
  return out;
}

}  // namespace lowtide::lint
