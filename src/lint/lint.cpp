#include "src/lint/lint.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/lint/fixes.h"
#include "src/lint/judge.h"
#include "src/lint/notebook.h"
#include "src/lint/rules.h"

namespace lowtide::lint {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in) {
    throw IoError("LT0554",
                  concat("cannot read ", path.string(), ". Is it there, and may you read it?"));
  }
  return text;
}

bool is_source(const fs::path& path) {
  return path.extension() == ".py" || path.extension() == ".ipynb" || path.extension() == ".pyi";
}

// Folders with other people's code, or with none.
bool is_skipped_folder(const std::string& name) {
  static const std::set<std::string> names{"__pycache__", "node_modules", "site-packages", "venv"};
  return (name.size() > 1 && name[0] == '.') || names.count(name) != 0;
}

void search(const fs::path& folder, std::vector<fs::path>& out) {
  std::error_code problem;
  fs::directory_iterator entries(folder, fs::directory_options::skip_permission_denied, problem);
  if (problem) {
    throw IoError("LT0554", concat("cannot read ", folder.string(), ": ", problem.message()));
  }
  for (const fs::directory_entry& entry : entries) {
    const fs::path& path = entry.path();
    if (entry.is_directory(problem)) {
      // A link to a folder may lead back up.
      if (!entry.is_symlink(problem) && !is_skipped_folder(path.filename().string())) {
        search(path, out);
      }
    } else if (entry.is_regular_file(problem) && is_source(path)) {
      out.push_back(path);
    }
  }
}

// Whether fairscale is required by the project around `folder`: the nearest folders up to the one
// with a repository or a project file.
class Requirements {
 public:
  bool has_fairscale(const fs::path& folder) {
    const std::string key = folder.string();
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    bool found = in_folder(folder);
    const bool top = fs::exists(folder / ".git") || folder == folder.parent_path();
    if (!found && !top) found = has_fairscale(folder.parent_path());
    known_[key] = found;
    return found;
  }

 private:
  static bool names_it(const fs::path& file) {
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    for (std::string line; std::getline(text, line);) {
      line = line.substr(0, line.find('#'));
      if (line.find("fairscale") != std::string::npos &&
          line.find("fairscale = false") == std::string::npos) {
        return true;
      }
    }
    return false;
  }
  static bool in_folder(const fs::path& folder) {
    std::error_code problem;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, problem)) {
      const std::string name = entry.path().filename().string();
      const bool list = name.rfind("requirements", 0) == 0 || name.rfind("environment", 0) == 0 ||
                        name == "setup.py" || name == "setup.cfg" || name == "pyproject.toml" ||
                        name == "Pipfile";
      if (list && entry.is_regular_file(problem) && names_it(entry.path())) return true;
      if (name == "requirements" && entry.is_directory(problem)) {
        for (const fs::directory_entry& part : fs::directory_iterator(entry.path(), problem)) {
          if (part.is_regular_file(problem) && names_it(part.path())) return true;
        }
      }
    }
    return false;
  }

  std::map<std::string, bool> known_;
};

// Words without which no rule can apply: files without any are parsed only.
bool may_use_torch(std::string_view source) {
  for (const std::string_view word : {"torch", "lightning", "backward", "zero_grad", "accelerate",
                                      "transformers", "num_cp", "with_cp", "fastai"}) {
    if (source.find(word) != std::string_view::npos) return true;
  }
  return false;
}

// The rules named by `# lowtide: ignore[a, b]`; all when there are no brackets.
struct Ignored {
  std::uint32_t line;
  std::vector<std::string> rules;
};

std::vector<Ignored> ignored_lines(const SyntaxTree& tree) {
  std::vector<Ignored> out;
  for (const Comment& comment : tree.comments) {
    const std::string_view text =
        std::string_view(tree.source).substr(comment.begin, comment.end - comment.begin);
    const std::size_t at = text.find("lowtide: ignore");
    if (at == std::string_view::npos) continue;
    Ignored ignored{comment.alone ? comment.line + 1 : comment.line, {}};
    const std::string_view rest = text.substr(at + 15);
    if (!rest.empty() && rest[0] == '[') {
      std::string name;
      for (const char c : rest.substr(1, rest.find(']') - 1)) {
        if (c == ',') {
          ignored.rules.push_back(std::move(name));
          name.clear();
        } else if (c != ' ') {
          name += c;
        }
      }
      ignored.rules.push_back(name);
    }
    out.push_back(std::move(ignored));
  }
  return out;
}

std::uint32_t last_line_of(const SyntaxTree& tree, NodeId id) {
  std::uint32_t line = tree[id].line;
  for (std::size_t at = tree[id].begin; at < tree[id].end; ++at) {
    if (tree.source[at] == '\n' && at + 1 < tree[id].end) ++line;
  }
  return line;
}

bool is_ignored(const std::vector<Ignored>& ignored, const std::string& rule, std::uint32_t first,
                std::uint32_t last) {
  return std::any_of(ignored.begin(), ignored.end(), [&](const Ignored& one) {
    if (one.line < first || one.line > last) return false;
    return one.rules.empty() ||
           std::find(one.rules.begin(), one.rules.end(), rule) != one.rules.end();
  });
}

// Counted in characters, as editors do, from 1.
std::uint32_t column_of(const SyntaxTree& tree, const Node& node) {
  const std::string_view line =
      std::string_view(tree.source).substr(tree.line_begins[node.line - 1], node.column - 1);
  return 1 + static_cast<std::uint32_t>(std::count_if(line.begin(), line.end(),
                                                      [](char c) { return (c & 0xC0) != 0x80; }));
}

bool is_statement_with_body(NodeKind kind) {
  return kind == NodeKind::kFor || kind == NodeKind::kWhile || kind == NodeKind::kFunction ||
         kind == NodeKind::kIf || kind == NodeKind::kWith || kind == NodeKind::kTry ||
         kind == NodeKind::kClass || kind == NodeKind::kMatch || kind == NodeKind::kBlock;
}

struct FileResult {
  std::vector<Finding> findings, notes;
  std::size_t lines = 0;
  std::string before, after;
  std::size_t fixes = 0;
};

bool worse(const Finding& a, const Finding& b) {
  return std::tie(a.cost, a.file, a.line, a.column, a.rule) <
         std::tie(b.cost, b.file, b.line, b.column, b.rule);
}

FileResult lint_file(const fs::path& path, const std::string& shown, const Config& config,
                     bool has_fairscale, FixMode mode) {
  FileResult result;
  std::string text = read_file(path);
  result.lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  const auto keep = [&](const Finding& finding) { return config.reports(finding.rule, path); };
  if (path.extension() == ".ipynb") {
    NotebookSource notebook;
    try {
      notebook = read_notebook(text);
    } catch (const FormatError& error) {
      result.findings.push_back({shown, 1, 1, "syntax-error",
                                 concat("this notebook cannot be read: ", error.what()),
                                 Cost::kPeak, std::nullopt, ""});
      return result;
    }
    const auto placed = [&](std::vector<Finding> all, std::vector<Finding>& out) {
      for (Finding& finding : all) {
        if (!keep(finding)) continue;
        finding.fix.reset();  // cells are JSON, not lines
        if (finding.line >= 1 && finding.line <= notebook.places.size()) {
          const auto [cell, line] = notebook.places[finding.line - 1];
          finding.cell = concat("cell ", cell);
          finding.line = line;
          finding.message = concat("cell ", cell, ": ", finding.message);
        }
        out.push_back(std::move(finding));
      }
    };
    std::vector<Finding> notes;
    placed(lint_source(notebook.python, shown, has_fairscale, &notes), result.findings);
    placed(std::move(notes), result.notes);
    return result;
  }
  result.before = text;
  // A fix may bring another to light, or free its place: a few rounds settle it.
  for (int round = 0;; ++round) {
    result.notes.clear();
    std::vector<Finding> all = lint_source(text, shown, has_fairscale, &result.notes);
    std::erase_if(all, [&](const Finding& finding) { return !keep(finding); });
    std::erase_if(result.notes, [&](const Finding& finding) { return !keep(finding); });
    std::vector<const Fix*> fixes;
    for (const Finding& finding : all) {
      if (mode == FixMode::kNone || !finding.fix) continue;
      if (finding.fix->safe || mode == FixMode::kSuggested) fixes.push_back(&*finding.fix);
    }
    if (fixes.empty() || round == 8) {
      result.findings = std::move(all);
      break;
    }
    std::vector<bool> applied;
    text = apply_fixes(text, fixes, applied);
    result.fixes += static_cast<std::size_t>(std::count(applied.begin(), applied.end(), true));
  }
  result.after = std::move(text);
  return result;
}

}  // namespace

std::vector<Finding> lint_source(std::string source, const std::string& file, bool has_fairscale,
                                 std::vector<Finding>* notes) {
  Names names;
  Vocabulary words(names);
  const bool relevant = may_use_torch(source);
  const SyntaxTree tree = parse_python(std::move(source), names);
  std::vector<Finding> out;
  if (tree.error_line != 0) {
    out.push_back({file, tree.error_line, tree.error_column, "syntax-error",
                   "this does not parse as Python 3; what could be read was checked", Cost::kPeak,
                   std::nullopt, ""});
  }
  if (!relevant) return out;
  Interpreter interpreter(tree, names, words);
  interpreter.run();
  std::vector<RawFinding> raw = judge(interpreter, tree, names, words);
  for (RawFinding& finding : judge_source(tree, names, words, has_fairscale)) {
    raw.push_back(std::move(finding));
  }
  const std::vector<Ignored> ignored = ignored_lines(tree);
  for (const RawFinding& finding : raw) {
    const Node& site = tree[finding.site];
    const std::uint32_t last =
        is_statement_with_body(site.kind) ? site.line : last_line_of(tree, finding.site);
    if (is_ignored(ignored, finding.rule, site.line, last)) continue;
    if (finding.note) {
      if (notes != nullptr) {
        notes->push_back({file, site.line, column_of(tree, site), finding.rule, finding.message,
                          finding.cost, std::nullopt, ""});
      }
      continue;
    }
    out.push_back({file, site.line, column_of(tree, site), finding.rule, finding.message,
                   finding.cost, fix_for(finding, tree, names, words), ""});
  }
  std::sort(out.begin(), out.end(), worse);
  return out;
}

Report run(const Options& options) {
  std::vector<fs::path> files;
  for (const std::string& word : options.paths) {
    const fs::path path(word);
    std::error_code problem;
    if (fs::is_directory(path, problem)) {
      search(path, files);
    } else if (fs::exists(path, problem)) {
      files.push_back(path);
    } else {
      throw UsageError("LT0550", concat("there is no file or folder ", word,
                                        ". Give the files and folders to check: lowtide lint src"));
    }
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());

  // A config for each folder, and what the project around it requires.
  struct Folder {
    Config config;
    bool has_fairscale;
  };
  std::map<fs::path, Folder> folders;
  Requirements requirements;
  for (const fs::path& file : files) {
    const fs::path folder = fs::absolute(file).lexically_normal().parent_path();
    if (folders.count(folder) != 0) continue;
    Config config = find_config(folder);
    const bool fairscale = config.fairscale || requirements.has_fairscale(folder);
    folders.emplace(folder, Folder{std::move(config), fairscale});
  }
  const auto folder_of = [&](const fs::path& file) -> const Folder& {
    return folders.at(fs::absolute(file).lexically_normal().parent_path());
  };
  std::erase_if(files, [&](const fs::path& file) {
    const Config& config = folder_of(file).config;
    return !config.exclude.empty() && config.is_excluded(fs::absolute(file).lexically_normal());
  });

  std::vector<FileResult> results(files.size());
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;  // guards failure
  const auto work = [&] {
    for (std::size_t i = next++; i < files.size(); i = next++) {
      try {
        const Folder& folder = folder_of(files[i]);
        results[i] = lint_file(fs::absolute(files[i]).lexically_normal(), files[i].generic_string(),
                               folder.config, folder.has_fairscale, options.fix);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
      }
    }
  };
  const std::size_t threads =
      std::min<std::size_t>(std::max(1U, std::thread::hardware_concurrency()), files.size());
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);

  Report report;
  report.files = files.size();
  for (std::size_t i = 0; i < files.size(); ++i) {
    FileResult& result = results[i];
    report.lines += result.lines;
    report.fixes += result.fixes;
    for (Finding& finding : result.findings) report.findings.push_back(std::move(finding));
    for (Finding& note : result.notes) report.notes.push_back(std::move(note));
    if (result.fixes == 0 || result.before == result.after) continue;
    if (options.write) {
      std::ofstream out(files[i], std::ios::binary | std::ios::trunc);
      out << result.after;
      if (!out.flush()) {
        throw IoError("LT0554",
                      concat("cannot write ", files[i].string(), ". May you write to it?"));
      }
    }
    report.mended.push_back(
        {files[i].generic_string(), std::move(result.before), std::move(result.after)});
  }
  std::stable_sort(report.findings.begin(), report.findings.end(), worse);
  return report;
}

}  // namespace lowtide::lint
