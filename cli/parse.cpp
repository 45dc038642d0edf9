#include "cli/parse.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "lowtide/error.h"
#include "lowtide/version.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr std::size_t kHelpColumns = 80;

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

// " (did you mean X?)" for the nearest candidate, when one is near.
std::string hint(std::string_view given, const std::vector<std::string>& candidates) {
  const std::string* nearest = nullptr;
  std::size_t best = std::max<std::size_t>(2, given.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(given, candidate);
    if (distance < best) {
      best = distance;
      nearest = &candidate;
    }
  }
  return nearest != nullptr ? concat(" (did you mean ", *nearest, "?)") : std::string();
}

[[noreturn]] void refuse(const Verb& verb, const std::string& problem) {
  throw UsageError("LT0703",
                   concat(verb.name, ": ", problem, ". See: lowtide ", verb.name, " --help"));
}

// Two columns, the second wrapped.
std::string help_row(const std::string& left, const std::string& right) {
  constexpr std::size_t kIndent = 26;
  std::string out = "  " + left;
  if (out.size() + 2 > kIndent) {
    out += '\n' + std::string(kIndent, ' ');
  } else {
    out.resize(kIndent, ' ');
  }
  std::size_t column = kIndent;
  std::istringstream words(right);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && column + 1 + word.size() > kHelpColumns) {
      out += '\n' + std::string(kIndent, ' ');
      column = kIndent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + '\n';
}

std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string out;
  for (const std::string& part : parts) {
    if (!out.empty()) out += separator;
    out += part;
  }
  return out;
}

}  // namespace

std::size_t end_of_flags(const Verb& verb, const std::vector<std::string>& arguments) {
  const auto takes_value = [&](const std::string& word) {
    return std::any_of(verb.flags.begin(), verb.flags.end(), [&](const Flag& flag) {
      return !flag.value_name.empty() &&
             (word == "--" + flag.name || (!flag.letter.empty() && word == "-" + flag.letter));
    });
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--") return i;
    if (!verb.passes_on) continue;
    if (!arguments[i].starts_with('-')) return i;
    if (takes_value(arguments[i])) ++i;
  }
  return arguments.size();
}

Arguments parse_arguments(const Verb& verb, const std::vector<std::string>& arguments) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::map<std::string, std::string> given;
  std::map<std::string, bool> switches;
  for (const Flag& flag : verb.flags) {
    const std::string spelled =
        (flag.letter.empty() ? "--" : "-" + flag.letter + ",--") + flag.name;
    if (flag.value_name.empty()) {
      app.add_flag(spelled, switches[flag.name])->disable_flag_override();
    } else {
      CLI::Option* option = app.add_option(spelled, given[flag.name]);
      if (flag.repeats) {
        option->join('\n');  // as Arguments::texts splits them
      } else {
        option->take_last();
      }
    }
  }
  const auto rest = arguments.begin() + static_cast<std::ptrdiff_t>(std::min(
                                            end_of_flags(verb, arguments), arguments.size()));
  // CLI11 takes its words in reverse order.
  std::vector<std::string> reversed(std::make_reverse_iterator(rest), arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ArgumentMismatch&) {
    for (const Flag& flag : verb.flags) {
      if (!arguments.empty() && !flag.value_name.empty() &&
          (arguments.back() == "--" + flag.name ||
           (!flag.letter.empty() && arguments.back() == "-" + flag.letter))) {
        refuse(verb, concat("--", flag.name, " needs a value, ", flag.value_name));
      }
    }
    refuse(verb, "a switch takes no value");
  } catch (const CLI::ParseError& problem) {
    refuse(verb, problem.what());
  }

  std::vector<std::string> words;
  for (const std::string& word : app.remaining()) {
    if (word.size() > 1 && word.front() == '-') {
      std::vector<std::string> candidates{"--help"};
      for (const Flag& flag : verb.flags) candidates.push_back("--" + flag.name);
      refuse(verb, concat("unknown flag ", word, hint(word, candidates)));
    }
    words.push_back(word);
  }
  if (rest != arguments.end()) {
    words.insert(words.end(), rest + (*rest == "--" ? 1 : 0), arguments.end());
  }
  const bool repeated = !verb.words.empty() && verb.words.back().repeated;
  if (words.size() > verb.words.size() && !repeated) {
    refuse(verb, concat("unexpected word \"", words[verb.words.size()], "\""));
  }
  if (words.size() < verb.words.size() && verb.words[words.size()].required) {
    refuse(verb, concat("missing ", verb.words[words.size()].name, " (",
                        verb.words[words.size()].help, ")"));
  }

  std::map<std::string, std::string> values;
  for (const Flag& flag : verb.flags) {
    const bool was_given = app.get_option("--" + flag.name)->count() > 0;
    if (flag.value_name.empty()) {
      if (was_given) values[flag.name] = "";
      continue;
    }
    if (!was_given && flag.default_value.empty()) continue;
    const std::string& value = was_given ? given[flag.name] : flag.default_value;
    if (!flag.choices.empty() &&
        std::find(flag.choices.begin(), flag.choices.end(), value) == flag.choices.end()) {
      refuse(verb, concat("--", flag.name, " is ", joined(flag.choices, " or "), ", not \"", value,
                          "\"", hint(value, flag.choices)));
    }
    values[flag.name] = value;
  }
  return Arguments(std::move(values), std::move(words));
}

const Verb& find_verb(const std::string& name) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) {
    if (verb.name == name) return verb;
    names.push_back(verb.name);
  }
  throw UsageError(
      "LT0704", concat("unknown verb \"", name, "\"", hint(name, names), ". See: lowtide --help"));
}

std::string help_text(const Verb& verb) {
  std::string out = concat("lowtide ", verb.name, ": ", verb.summary, "\n\nUsage: lowtide ",
                           verb.name, verb.flags.empty() ? "" : " [flags]");
  for (const Word& word : verb.words) {
    out += word.required ? concat(" ", word.name) : concat(" [", word.name, "]");
    if (word.repeated) out += "...";
  }
  out += "\n\n";
  for (const Word& word : verb.words) out += help_row(word.name, word.help);
  for (const Flag& flag : verb.flags) {
    std::string right = flag.help;
    if (!flag.choices.empty()) right += concat(" (", joined(flag.choices, ", "), ")");
    if (!flag.default_value.empty()) right += concat(" [", flag.default_value, "]");
    std::string left = (flag.letter.empty() ? "--" : "-" + flag.letter + ", --") + flag.name;
    if (!flag.value_name.empty()) left += " " + flag.value_name;
    out += help_row(left, right);
  }
  out += help_row("--help", "show this text");
  out += "\nExamples:\n";
  for (const std::string& example : verb.examples) out += concat("  ", example, "\n");
  return out;
}

std::string program_help_text() {
  std::string out =
      "lowtide " LOWTIDE_VERSION_STRING
      ": keep PyTorch training below its high-water mark\n\nUsage: lowtide <verb> [flags]\n\n";
  for (const Verb& verb : verbs()) out += help_row(verb.name, verb.summary);
  out += help_row("--version", "print the version");
  out += help_row("--help", "show this text; lowtide <verb> --help explains one verb");
  out +=
      "\nExit codes: 0 done, 1 failed, 2 wrong usage, 3 no plan fits, 4 result differs.\n"
      "\nExamples:\n  lowtide doctor\n  lowtide train --steps 40 --num-cp auto\n";
  return out;
}

}  // namespace lowtide
