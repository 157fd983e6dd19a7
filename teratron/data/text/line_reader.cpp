#include "teratron/data/text/line_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <glob.h>
#include <lzma.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

constexpr size_t kBlockBytes = 1 << 20;
constexpr size_t kMagicBytes = 6;

/// A file or standard input whose first bytes can be inspected before reading.
class FileStream : public InputStream {
 public:
  explicit FileStream(const std::string& path) : path_(path == "-" ? "standard input" : path) {
    fd_ = path == "-" ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) {
      throw data_error({.what = fmt::format("cannot be opened: {}", std::strerror(errno)),
                        .where = printable(path_, 1000),
                        .fix = "Check the path given to --input"});
    }
    struct stat status{};
    if (path != "-" && ::fstat(fd_, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
      ::close(fd_);
      throw data_error({.what = "is not a regular file",
                        .where = printable(path_, 1000),
                        .fix = "Pipe it into `teratron preprocess --input -`"});
    }
    while (magic_.size() < kMagicBytes) {
      char bytes[kMagicBytes];
      const size_t count = read_file(bytes, kMagicBytes - magic_.size());
      if (count == 0) break;
      magic_.append(bytes, count);
    }
  }
  ~FileStream() override { ::close(fd_); }
  FileStream(const FileStream&) = delete;
  FileStream& operator=(const FileStream&) = delete;

  const std::string& path() const { return path_; }
  std::string_view magic() const { return magic_; }

  size_t read(char* to, size_t size) override {
    size_t count = std::min(size, magic_.size() - magic_read_);
    if (count > 0) {
      std::memcpy(to, magic_.data() + magic_read_, count);
      magic_read_ += count;
    } else {
      count = read_file(to, size);
    }
    position_ += static_cast<int64_t>(count);
    return count;
  }
  int64_t position() const override { return position_; }

 private:
  size_t read_file(char* to, size_t size) {
    while (true) {
      const ssize_t count = ::read(fd_, to, size);
      if (count >= 0) return static_cast<size_t>(count);
      if (errno == EISDIR) throw data_error({.what = "is a directory", .where = printable(path_, 1000)});
      if (errno != EINTR)
        throw Fault(fmt::format("reading {} failed: {}", printable(path_), std::strerror(errno)));
    }
  }

  std::string path_;
  int fd_ = -1;
  std::string magic_;
  size_t magic_read_ = 0;
  int64_t position_ = 0;
};

/// Input buffer and error of the three decompressors.
class DecompressionStream : public InputStream {
 public:
  explicit DecompressionStream(std::unique_ptr<FileStream> file)
      : file_(std::move(file)), buffer_(kBlockBytes, '\0') {}
  int64_t position() const override { return file_->position(); }

 protected:
  /// More input; empty at the end of the file.
  std::string_view refill() {
    const size_t count = file_->read(buffer_.data(), buffer_.size());
    return {buffer_.data(), count};
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw data_error(
        {.what = fmt::format("damaged compressed data after {} bytes: {}", file_->position(), what),
         .where = printable(file_->path(), 1000),
         .fix = "Fetch or compress the file again"});
  }

 private:
  std::unique_ptr<FileStream> file_;
  std::string buffer_;
};

class GzipStream : public DecompressionStream {
 public:
  explicit GzipStream(std::unique_ptr<FileStream> file) : DecompressionStream(std::move(file)) {
    constexpr int kGzip = 16 + MAX_WBITS;
    TERATRON_ASSERT(::inflateInit2(&stream_, kGzip) == Z_OK);
  }
  ~GzipStream() override { ::inflateEnd(&stream_); }

  size_t read(char* to, size_t size) override {
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out == size) {
      if (stream_.avail_in == 0) {
        const std::string_view input = refill();
        if (input.empty()) {
          if (!between_members_) fail("unexpected end");
          return 0;
        }
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
        stream_.avail_in = static_cast<uInt>(input.size());
      }
      between_members_ = false;
      const int result = ::inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {  // another member may follow
        ::inflateReset(&stream_);
        between_members_ = true;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        fail(stream_.msg != nullptr ? stream_.msg : "invalid gzip data");
      }
    }
    return size - stream_.avail_out;
  }

 private:
  z_stream stream_ = {};
  bool between_members_ = false;
};

class XzStream : public DecompressionStream {
 public:
  explicit XzStream(std::unique_ptr<FileStream> file) : DecompressionStream(std::move(file)) {
    constexpr uint64_t kMemory = uint64_t{1} << 30;
    TERATRON_ASSERT(::lzma_stream_decoder(&stream_, kMemory, LZMA_CONCATENATED) == LZMA_OK);
  }
  ~XzStream() override { ::lzma_end(&stream_); }

  size_t read(char* to, size_t size) override {
    stream_.next_out = reinterpret_cast<uint8_t*>(to);
    stream_.avail_out = size;
    while (stream_.avail_out == size && !finished_) {
      if (stream_.avail_in == 0 && !input_ended_) {
        const std::string_view input = refill();
        input_ended_ = input.empty();
        stream_.next_in = reinterpret_cast<const uint8_t*>(input.data());
        stream_.avail_in = input.size();
      }
      const lzma_ret result = ::lzma_code(&stream_, input_ended_ ? LZMA_FINISH : LZMA_RUN);
      finished_ = result == LZMA_STREAM_END;
      if (result == LZMA_MEMLIMIT_ERROR) fail("the decoder needs more than 1 GiB of memory");
      if (result != LZMA_OK && !finished_) fail("invalid xz data or unexpected end");
    }
    return size - stream_.avail_out;
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool input_ended_ = false;
  bool finished_ = false;
};

class ZstdStream : public DecompressionStream {
 public:
  explicit ZstdStream(std::unique_ptr<FileStream> file)
      : DecompressionStream(std::move(file)), stream_(::ZSTD_createDStream(), &::ZSTD_freeDStream) {
    TERATRON_ASSERT(stream_ != nullptr);
  }

  size_t read(char* to, size_t size) override {
    ZSTD_outBuffer output{to, size, 0};
    while (output.pos == 0) {
      if (input_.pos == input_.size) {
        const std::string_view more = refill();
        // If the output was full, the decoder may hold decoded bytes: flush them without input.
        if (more.empty() && !flushing_) {
          if (expected_ != 0) fail("unexpected end");
          return 0;
        }
        input_ = {more.data(), more.size(), 0};
      }
      const size_t result = ::ZSTD_decompressStream(stream_.get(), &output, &input_);
      if (::ZSTD_isError(result)) fail(::ZSTD_getErrorName(result));
      expected_ = result;
      flushing_ = output.pos == output.size && result != 0;
    }
    return output.pos;
  }

 private:
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  ZSTD_inBuffer input_ = {nullptr, 0, 0};
  size_t expected_ = 0;
  bool flushing_ = false;
};

}  // namespace

std::unique_ptr<InputStream> open_input(const std::string& path) {
  auto file = std::make_unique<FileStream>(path);
  const std::string_view magic = file->magic();
  if (magic.starts_with("\x1f\x8b")) return std::make_unique<GzipStream>(std::move(file));
  if (magic.starts_with(std::string_view("\xfd\x37zXZ\0", 6)))
    return std::make_unique<XzStream>(std::move(file));
  if (magic.starts_with("\x28\xb5\x2f\xfd")) return std::make_unique<ZstdStream>(std::move(file));
  return file;
}

LineReader::LineReader(std::vector<std::string> paths, size_t max_line_bytes)
    : paths_(std::move(paths)), max_line_bytes_(max_line_bytes) {}

bool LineReader::fill() {
  const size_t before = rest_.size();
  rest_.resize(before + kBlockBytes);
  const size_t count = stream_->read(rest_.data() + before, kBlockBytes);
  rest_.resize(before + count);
  at_end_ = count == 0;
  return !at_end_;
}

LineBlock LineReader::take(size_t size) {
  LineBlock block{.file = file_, .first_line = line_, .text = rest_.substr(0, size)};
  rest_.erase(0, size);
  line_ += std::count(block.text.begin(), block.text.end(), '\n');
  if (!block.text.empty() && block.text.back() != '\n') {
    block.text += '\n';
    ++line_;
  }
  return block;
}

// Skips some of a line that is too long. It may never end: it was reported first, and the caller may stop.
LineBlock LineReader::skip() {
  rest_.clear();
  const bool more = fill();
  const size_t end = rest_.find('\n');
  skipping_ = more && end == std::string::npos;
  if (!skipping_) {
    rest_.erase(0, end == std::string::npos ? end : end + 1);
    ++line_;
  }
  return {.file = file_, .first_line = line_};
}

std::optional<LineBlock> LineReader::next() {
  while (file_ < paths_.size()) {
    if (stream_ == nullptr) {
      stream_ = open_input(paths_[file_]);
      at_end_ = false;
      line_ = 1;
    }
    if (skipping_) return skip();
    size_t searched = 0;
    while (!at_end_ && rest_.find('\n', searched) == std::string::npos) {
      if (rest_.size() > max_line_bytes_) {
        skipping_ = true;
        return LineBlock{.file = file_, .first_line = line_, .too_long = line_};
      }
      searched = rest_.size();
      fill();
    }
    const size_t end = rest_.rfind('\n');
    if (end != std::string::npos) return take(end + 1);
    if (!rest_.empty()) return take(rest_.size());
    finished_bytes_ += stream_->position();
    stream_.reset();
    ++file_;
  }
  return {};
}

std::vector<std::string> expand_patterns(const std::vector<std::string>& patterns) {
  std::vector<std::string> paths;
  for (const std::string& pattern : patterns) {
    if (pattern.find_first_of("*?[") == std::string::npos || ::access(pattern.c_str(), F_OK) == 0) {
      paths.push_back(pattern);
      continue;
    }
    glob_t found = {};
    if (::glob(pattern.c_str(), 0, nullptr, &found) != 0) {
      throw data_error({.what = "no file matches this pattern",
                        .where = printable(pattern, 1000),
                        .fix = "Check the pattern given to --input"});
    }
    paths.insert(paths.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
  }
  return paths;
}

}  // namespace teratron
