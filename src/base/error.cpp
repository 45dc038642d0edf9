#include "lowtide/error.h"

namespace lowtide {

Error::Error(const std::string& id, const std::string& message, ErrorDetails details)
    : std::runtime_error(message + " [" + id + "]"), ErrorInfo(id, std::move(details)) {}

// Defined here so that each class has one typeinfo, and is caught across shared libraries.
ErrorInfo::~ErrorInfo() = default;
Error::~Error() = default;
UsageError::~UsageError() = default;
IoError::~IoError() = default;
FormatError::~FormatError() = default;
DivergenceError::~DivergenceError() = default;
TorchError::~TorchError() = default;
InternalError::~InternalError() = default;

}  // namespace lowtide
