#pragma once
// Finds memory messages in the lines of one lane (a rank, a task) of a log.
//
// Terminals, boxes and loggers break a message anywhere, so it is read with all blanks taken out:
// what is left is the same however it was broken. Each form is then a short grammar whose later
// clauses are optional, since messages are also cut off.
//
//   SqueezedText text(lines);
//   for (const FoundMessage& found : read_messages(text)) use(found.message, found.first_line);
//
// Nothing is thrown, whatever the text is. Linear in it. Tested by tests/evidence/
// message_reader_test.cpp, which prints records in each form and reads them back.

#include <cstddef>
#include <string>
#include <vector>

#include "src/evidence/memory_message.h"

namespace lowtide {

// Lines joined without any blanks, and the way back from a place in it to its line.
class SqueezedText {
 public:
  explicit SqueezedText(const std::vector<std::string>& lines);

  const std::string& text() const { return text_; }
  // The index of the line that holds the character `at`.
  std::size_t line_of(std::size_t at) const;
  // Half open: where the line of the character `at` ends in text().
  std::size_t end_of_line(std::size_t at) const;
  // Whether the line consists of the `length` characters at `at`, and at most a colon.
  bool is_whole_line(std::size_t at, std::size_t length) const;
  // Whether the word at `at` is a shell's report that a program was killed.
  bool is_shell_report(std::size_t at) const;

 private:
  std::string text_;
  std::vector<std::size_t> begins_;  // of each line, ascending
};

struct FoundMessage {
  MemoryMessage message;
  std::size_t first_line = 0;  // indices into the lines
  std::size_t last_line = 0;   // included
};

// In the order of the text.
std::vector<FoundMessage> read_messages(const SqueezedText& text);

}  // namespace lowtide
