#pragma once
// The errors that Lowtide throws. Each has a stable id such as LT0201, listed in docs/errors.md
// with its cause and remedy, and the numbers behind the message as `details`.
//
//   try { load_safetensors(path); }
//   catch (const lowtide::FormatError& e) { log(e.id(), e.what()); }
//
// A message says what could not be done, to what, the numbers, and the way out.

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "lowtide/export.h"

namespace lowtide {

using ErrorDetail = std::variant<std::int64_t, double, std::string>;
using ErrorDetails = std::map<std::string, ErrorDetail>;

// What every error of Lowtide's carries. It has no std::exception base, so that it can stand beside
// an exception class of libtorch's in one error.
class LOWTIDE_API ErrorInfo {
 public:
  ErrorInfo(std::string id, ErrorDetails details)
      : id_(std::move(id)), details_(std::move(details)) {}
  virtual ~ErrorInfo();

  const std::string& id() const noexcept { return id_; }
  const ErrorDetails& details() const noexcept { return details_; }

 private:
  std::string id_;
  ErrorDetails details_;
};

// what() is the message followed by the id in brackets.
class LOWTIDE_API Error : public std::runtime_error, public ErrorInfo {
 public:
  Error(const std::string& id, const std::string& message, ErrorDetails details = {});
  ~Error() override;
};

// The call was wrong: an argument, a flag, a shape.
class LOWTIDE_API UsageError : public Error {
 public:
  using Error::Error;
  ~UsageError() override;
};

// The operating system refused: a file that cannot be opened, a full disk.
class LOWTIDE_API IoError : public Error {
 public:
  using Error::Error;
  ~IoError() override;
};

// The bytes of a file are not what its format asks for.
class LOWTIDE_API FormatError : public Error {
 public:
  using Error::Error;
  ~FormatError() override;
};

// A step, or the replay of a part of one, went another way than the first time.
class LOWTIDE_API DivergenceError : public Error {
 public:
  using Error::Error;
  ~DivergenceError() override;
};

// libtorch is missing, of another version than built for, or did not behave as it must.
class LOWTIDE_API TorchError : public Error {
 public:
  using Error::Error;
  ~TorchError() override;
};

// A bug of Lowtide's own.
class LOWTIDE_API InternalError : public Error {
 public:
  using Error::Error;
  ~InternalError() override;
};

}  // namespace lowtide
