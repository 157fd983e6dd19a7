#include "teratron/base/file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "teratron/base/fault_point.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

constexpr int max_attempts = 6;
constexpr std::chrono::milliseconds first_pause{25};    // doubles: 0.8 s in total
constexpr mode_t file_mode = 0666, folder_mode = 0777;  // less the umask

std::atomic<int64_t>& retry_count() {
  static std::atomic<int64_t> count = 0;  // lint: allow(global-state): a metric of the process
  return count;
}

bool is_user_error(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case EEXIST:
    case ENOTEMPTY:
    case ELOOP:
    case ENAMETOOLONG:
    case ENXIO:
      return true;
    default:
      return false;
  }
}

[[noreturn]] void throw_errno(std::string_view action, const fs::path& path, ExitCode kind, int error) {
  const std::string reason = std::generic_category().message(error);
  const std::string where = printable(path.string(), 4096);
  if (is_user_error(error))
    throw UserError(
        kind, {{fmt::format("cannot {}: {}", action, reason), where, "Check the path and its permissions"}});
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw IoFault(fmt::format("{}: cannot {}: {}. {}.", where, action, reason,
                            full ? "Free space, or choose another location" : "Check the file system"),
                error);
}

// Retries `operation`, which returns < 0 and sets errno on failure, up to max_attempts times. Returns >= 0,
// or -1 with errno set.
template <typename Operation>
int64_t with_retry(std::string_view point, const Operation& operation) {
  std::chrono::milliseconds pause = first_pause;
  for (int attempt = 1;; ++attempt) {
    const int injected = fault_point(point);
    if (injected != 0) errno = injected;
    const int64_t result = injected != 0 ? -1 : operation();
    if (result >= 0) return result;
    if (errno == EINTR) continue;
    const int error = errno;
    if ((error != EIO && error != ESTALE) || attempt == max_attempts) return -1;
    retry_count().fetch_add(1, std::memory_order_relaxed);
    std::this_thread::sleep_for(pause);
    pause *= 2;
    errno = error;
  }
}

int open_with_retry(const fs::path& path, ExitCode kind, int flags) {
  const int64_t descriptor =
      with_retry("file.open", [&] { return ::open(path.c_str(), flags | O_CLOEXEC, file_mode); });
  if (descriptor < 0) throw_errno(flags & O_CREAT ? "create" : "open", path, kind, errno);
  return static_cast<int>(descriptor);
}

}  // namespace

IoFault::IoFault(const std::string& message, int error_number)
    : Fault(message, error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG
                         ? ExitCode::checkpoint
                         : ExitCode::retryable),
      error_number_(error_number) {}

bool IoFault::is_full() const {
  return exit_code() == ExitCode::checkpoint;
}

int64_t io_retries() {
  return retry_count().load(std::memory_order_relaxed);
}

File::File(fs::path path, ExitCode kind, int flags)
    : path_(std::move(path)), kind_(kind), descriptor_(open_with_retry(path_, kind, flags)) {}

File File::open(const fs::path& path, ExitCode kind) {
  File file(path, kind, O_RDONLY | O_NONBLOCK);
  file.require_regular();
  return file;
}

File File::create(const fs::path& path, ExitCode kind) {
  return File(path, kind, O_WRONLY | O_CREAT | O_EXCL);
}

File File::append(const fs::path& path, ExitCode kind) {
  File file(path, kind, O_WRONLY | O_CREAT | O_NONBLOCK);
  file.require_regular();
  file.written_ = file.size();
  return file;
}

void File::require_regular() const {
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0) throw_errno("read the type", path_, kind_, errno);
  if (S_ISREG(status.st_mode)) return;
  if (S_ISDIR(status.st_mode)) throw_errno("read", path_, kind_, EISDIR);
  throw UserError(kind_, {{.what = fmt::format("is a {}, not a regular file",
                                               S_ISFIFO(status.st_mode) ? "pipe" : "device or socket"),
                           .where = printable(path_.string(), 4096),
                           .fix = "Write what it yields into a file first"}});
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      kind_(other.kind_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      written_(other.written_),
      started_(other.started_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(kind_, other.kind_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(written_, other.written_);
  std::swap(started_, other.started_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int64_t File::size() const {
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0) throw_errno("read the size", path_, kind_, errno);
  return status.st_size;
}

int64_t File::read_some(void* buffer, int64_t bytes, int64_t offset) const {
  int64_t done = 0;
  while (done < bytes) {
    bool stale = false;
    const int64_t got = with_retry("file.read", [&]() -> int64_t {
      char* const to = static_cast<char*>(buffer) + done;
      if (!stale) {
        const int64_t result = ::pread(descriptor_, to, bytes - done, offset + done);
        stale = result < 0 && errno == ESTALE;
        return result;
      }
      // A stale handle stays stale: read through a fresh one.
      const int fresh = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
      if (fresh < 0) return -1;
      const int64_t result = ::pread(fresh, to, bytes - done, offset + done);
      const int error = errno;
      ::close(fresh);
      errno = error;
      return result;
    });
    if (got < 0) throw_errno("read", path_, kind_, errno);
    if (got == 0) break;
    done += got;
  }
  return done;
}

void File::read(void* buffer, int64_t bytes, int64_t offset) const {
  const int64_t got = read_some(buffer, bytes, offset);
  if (got == bytes) return;
  throw UserError(
      kind_,
      {{.what = fmt::format("truncated file: expected {} bytes at offset {}, found {}", bytes, offset, got),
        .where = printable(path_.string(), 4096)}});
}

void File::write(const void* data, int64_t bytes) {
  int64_t done = 0;
  while (done < bytes) {
    // pwrite at a known offset is idempotent, so a retry cannot write twice.
    const int64_t put = with_retry("file.write", [&] {
      return ::pwrite(descriptor_, static_cast<const char*>(data) + done, bytes - done, written_);
    });
    if (put < 0) throw_errno("write", path_, kind_, errno);
    if (put == 0) throw_errno("write", path_, kind_, ENOSPC);
    done += put;
    written_ += put;
  }
}

// Only a hint: sync() reports what fails.
void File::start_writeback() {
  ::sync_file_range(descriptor_, started_, written_ - started_, SYNC_FILE_RANGE_WRITE);
  started_ = written_;
}

void File::sync() {
  const int injected = fault_point("file.sync");
  if (injected != 0) throw_errno("sync", path_, kind_, injected);
  if (::fsync(descriptor_) != 0) throw_errno("sync", path_, kind_, errno);
}

void File::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR)
    throw_errno("close", path_, kind_, errno);
}

TemporaryPath::TemporaryPath(fs::path target, ExitCode kind)
    : target_(std::move(target)),
      kind_(kind),
      path_(target_.parent_path() / fmt::format(".{}.{}.tmp", target_.filename().string(), random_hex(16))) {
  std::error_code ignored;
  const fs::file_status status = fs::status(target_, ignored);
  const fs::path folder = target_.has_parent_path() ? target_.parent_path() : ".";
  if (!fs::is_directory(folder, ignored) || ::access(folder.c_str(), W_OK) != 0) {
    throw UserError(kind, {{.what = fs::is_directory(folder, ignored) ? "its directory is not writable"
                                                                      : "its directory does not exist",
                            .where = target_.string(),
                            .fix = "Choose a file in a writable directory"}});
  }
  if (!fs::exists(status) || fs::is_regular_file(status)) return;
  throw UserError(kind,
                  {{.what = fs::is_directory(status) ? "is a directory, not a file" : "is not a regular file",
                    .where = target_.string(),
                    .fix = "Choose a file"}});
}

TemporaryPath::~TemporaryPath() {
  if (!committed_) ::unlink(path_.c_str());
}

void TemporaryPath::commit() {
  TERATRON_ASSERT(!committed_);
  rename_path(path_, target_, kind_);
  committed_ = true;
  sync_directory(target_.parent_path(), kind_);
}

void AtomicFile::commit() {
  file_.sync();
  file_.close();
  path_.commit();
}

std::string read_text(const fs::path& path, const ReadOptions& options) {
  const File file = File::open(path, options.kind);
  const int64_t size = file.size();
  if (size < 0 || static_cast<size_t>(size) > options.max_bytes) {
    throw UserError(options.kind,
                    {{.what = fmt::format("file of {} bytes, the limit is {}", size, options.max_bytes),
                      .where = printable(path.string(), 4096)}});
  }
  std::string text(static_cast<size_t>(size), '\0');
  file.read(text.data(), size, 0);
  return text;
}

void write_text(const fs::path& path, std::string_view text, ExitCode kind) {
  AtomicFile file(path, kind);
  file.write(text);
  file.commit();
}

void rename_path(const fs::path& from, const fs::path& to, ExitCode kind) {
  const int64_t result = with_retry("file.rename", [&] { return ::rename(from.c_str(), to.c_str()); });
  if (result < 0)
    throw_errno(fmt::format("rename to '{}'", printable(to.filename().string())), from, kind, errno);
}

void sync_directory(const fs::path& path, ExitCode kind) {
  const fs::path directory = path.empty() ? fs::path(".") : path;
  const int descriptor = open_with_retry(directory, kind, O_RDONLY | O_DIRECTORY);
  const int injected = fault_point("file.sync");
  const int error = injected != 0 ? injected : (::fsync(descriptor) != 0 ? errno : 0);
  ::close(descriptor);
  // Some network file systems return EINVAL for directories; their renames are synchronous.
  if (error != 0 && error != EINVAL) throw_errno("sync", directory, kind, error);
}

void make_directories(const fs::path& path, ExitCode kind) {
  if (path.empty() || ::mkdir(path.c_str(), folder_mode) == 0) return;
  int error = errno;
  if (error == ENOENT && path.has_relative_path() && path.parent_path() != path) {
    make_directories(path.parent_path(), kind);
    error = ::mkdir(path.c_str(), folder_mode) == 0 ? 0 : errno;
  }
  std::error_code ignored;
  if (error == 0 || (error == EEXIST && fs::is_directory(path, ignored))) return;
  throw_errno("create the directory", path, kind, error == EEXIST ? ENOTDIR : error);
}

std::vector<std::string> list_directory(const fs::path& path, ExitCode kind) {
  std::vector<std::string> names;
  DIR* const directory = ::opendir(path.c_str());
  if (directory == nullptr) {
    if (errno == ENOENT) return names;
    throw_errno("list the directory", path, kind, errno);
  }
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  const int error = errno;
  ::closedir(directory);
  if (error != 0) throw_errno("list the directory", path, kind, error);
  std::sort(names.begin(), names.end());
  return names;
}

std::string random_hex(size_t digits) {
  std::string bytes((digits + 1) / 2, '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (got < 0 && errno != EINTR) throw IoFault("getrandom failed", errno);
    if (got > 0) done += static_cast<size_t>(got);
  }
  std::string hex;
  for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return hex.substr(0, digits);
}

}  // namespace teratron
