#include "src/checkpoint/kept_input.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "lowtide/bytes.h"
#include "lowtide/error.h"
#include "src/base/assert.h"
#include "src/base/text.h"

// Offloading keeps the span of the storage that the input covers, gaps included, so that the tensor
// that comes back has the same strides (kernels choose by them, and so do their last bits). An
// expanded tensor covers little; a column of a matrix covers all of it.
//
// The file never has a name: O_TMPFILE, or mkostemp and unlink where the file system cannot do
// that. It is readable by this process alone and gone with it. Space is not given back before the
// region's graph is freed.
//
// Tested by replay_test.cpp.

namespace lowtide::checkpoint_impl {
namespace {

constexpr std::int64_t kMinBytes = 64 << 10;

// Elements of storage between the tensor's first and last one, both included.
std::int64_t span_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t span = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) span += (tensor.size(d) - 1) * tensor.stride(d);
  return span;
}

at::Tensor over_storage(const at::Tensor& geometry, const c10::Storage& storage) {
  at::Tensor result = geometry.tensor_data();
  result.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  result.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(0));
  return result;
}

}  // namespace

SpillFile::SpillFile(const std::string& directory) : directory_(directory) {
  if (directory_.empty()) {
    const char* const from_environment = std::getenv("TMPDIR");
    directory_ =
        from_environment != nullptr && *from_environment != '\0' ? from_environment : "/tmp";
  }
  fd_ = open(directory_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    std::string name = directory_ + "/lowtide-XXXXXX";
    fd_ = mkostemp(name.data(), O_CLOEXEC);  // mode 0600
    if (fd_ >= 0) unlink(name.c_str());
  }
  if (fd_ < 0) {
    throw IoError("LT0210",
                  concat("cannot offload the inputs of a checkpointed region: no file can be "
                         "made in ",
                         directory_, ": ", std::strerror(errno),
                         ". Set CheckpointOptions::offload_directory to a folder with room"));
  }
}

SpillFile::~SpillFile() {
  if (fd_ >= 0) close(fd_);
}

std::uint64_t SpillFile::append(const void* bytes, std::uint64_t size) {
  const auto* next = static_cast<const char*>(bytes);
  std::uint64_t done = 0;
  while (done < size) {
    const auto chunk = static_cast<std::size_t>(std::min<std::uint64_t>(size - done, 1 << 30));
    const ssize_t written = pwrite(fd_, next + done, chunk, static_cast<off_t>(end_ + done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written == 0 ? ENOSPC : errno;
      throw IoError("LT0210",
                    concat("cannot offload the inputs of a checkpointed region: writing ",
                           format_bytes(size), " to a file in ", directory_, " stopped after ",
                           format_bytes(done), ": ", std::strerror(error),
                           ". Nothing is lost; free some space, or set "
                           "CheckpointOptions::offload_directory to a folder with room"),
                    {{"bytes", static_cast<std::int64_t>(size)},
                     {"written", static_cast<std::int64_t>(done)}});
    }
    done += static_cast<std::uint64_t>(written);
  }
  const std::uint64_t at = end_;
  end_ += (size + 63) / 64 * 64;
  return at;
}

void SpillFile::read(std::uint64_t at, void* bytes, std::uint64_t size) const {
  auto* next = static_cast<char*>(bytes);
  std::uint64_t done = 0;
  while (done < size) {
    const auto chunk = static_cast<std::size_t>(std::min<std::uint64_t>(size - done, 1 << 30));
    const ssize_t got = pread(fd_, next + done, chunk, static_cast<off_t>(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw IoError(
          "LT0211",
          concat("cannot read back an offloaded input of a checkpointed region: ", done, " of ",
                 size, " bytes came from the file in ", directory_, ": ",
                 got == 0 ? "it ends there" : std::strerror(errno)),
          {{"bytes", static_cast<std::int64_t>(size)}, {"read", static_cast<std::int64_t>(done)}});
    }
    done += static_cast<std::uint64_t>(got);
  }
}

namespace {

thread_local bool t_keeping = false;

hook::SavedTensor keep(const at::Tensor& tensor) {
  struct Keeping {
    bool before = std::exchange(t_keeping, true);
    ~Keeping() { t_keeping = before; }
  } const now;
  return hook::SavedTensor(tensor);
}

}  // namespace

bool KeptInput::is_keeping() noexcept { return t_keeping; }

// The tensor's data without its history: holding the Variable would be a reference cycle once the
// region changes it in place, for then its history leads through the region's own nodes.
KeptInput::KeptInput(const at::Tensor& tensor)
    : requires_grad_(tensor.requires_grad()),
      is_leaf_(tensor.is_leaf()),
      // Inside another region, that one's replay gives the inputs back: nothing is held here.
      movable_(!(requires_grad_ && is_leaf_) && hook::SavedTensorScope::innermost() == nullptr),
      saved_(keep(tensor.tensor_data())),
      as_given_(tensor.tensor_data()) {}

void KeptInput::follow_writes(const RegionTrace& trace) {
  if (before_writes_.defined() || !as_given_.has_storage()) return;
  const c10::StorageImpl* const storage =
      as_given_.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  for (const OutsideTensor& outside : trace.outside) {
    if (!outside.bytes_before.defined() || outside.storage._unsafe_get_target() != storage)
      continue;
    bytes_before_ = outside.bytes_before;
    before_writes_ = over_storage(as_given_, bytes_before_.storage());
    saved_ = hook::SavedTensor();
    return;
  }
}

void KeptInput::offload(const CheckpointOptions& options, std::shared_ptr<SpillFile>& file) {
  if (options.offload == Offload::kNone || !movable_ || before_writes_.defined()) return;
  const at::Tensor tensor = saved_.unpack();
  if (tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.is_meta() ||
      tensor.is_conj() || tensor.is_neg() || tensor.is_quantized() || tensor.is_nested()) {
    return;
  }
  span_ = span_of(tensor);
  const auto size = static_cast<std::uint64_t>(span_) * tensor.element_size();
  if (size < kMinBytes) return;
  const bool on_host = tensor.device().is_cpu();
  if (options.offload == Offload::kHost && on_host) return;
  const hook::UnobservedOps hidden;
  at::Tensor span = tensor.as_strided({span_}, {1});
  if (!on_host) span = span.cpu();
  if (options.offload == Offload::kHost) {
    on_host_ = span;
  } else {
    if (file == nullptr) file = std::make_shared<SpillFile>(options.offload_directory);
    at_ = file->append(span.const_data_ptr(), size);
    file_ = file;
  }
  empty_like_ = over_storage(tensor, at::empty({0}, tensor.options()).storage());
  empty_like_.unsafeGetTensorImpl()->set_storage_offset(0);
  saved_ = hook::SavedTensor();
}

at::Tensor KeptInput::for_replay(ReplayObserver& observer) const {
  at::Tensor data;
  if (before_writes_.defined()) {
    data = over_storage(before_writes_, observer.scratch_for(bytes_before_).storage());
  } else if (empty_like_.defined()) {
    const hook::UnobservedOps hidden;
    at::Tensor span = on_host_;
    if (file_ != nullptr) {
      span = at::empty({span_}, empty_like_.options().device(at::kCPU));
      file_->read(at_, span.mutable_data_ptr(),
                  static_cast<std::uint64_t>(span_) * empty_like_.element_size());
    }
    if (!empty_like_.device().is_cpu()) span = span.to(empty_like_.device());
    data = over_storage(empty_like_, span.storage());
    observer.own(data);
  } else {
    data = saved_.unpack().tensor_data();
  }
  if (requires_grad_) {
    if (is_leaf_) {
      data.set_requires_grad(true);
    } else {
      hook::make_intermediate(data);
    }
  }
  return data;
}

}  // namespace lowtide::checkpoint_impl
