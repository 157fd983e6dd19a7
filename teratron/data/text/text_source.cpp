#include "teratron/data/text/text_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <glob.h>
#include <lzma.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

constexpr size_t kBlockBytes = 1 << 20;
constexpr size_t kMagicBytes = 6;

/// A file or standard input, with its first bytes readable in advance.
class RawSource : public ByteSource {
 public:
  explicit RawSource(const std::string& path) : path_(path == "-" ? "standard input" : path) {
    fd_ = path == "-" ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) {
      throw data_error({.what = fmt::format("cannot be opened: {}", std::strerror(errno)),
                        .where = printable(path_, 1000),
                        .fix = "Check the path given to --input"});
    }
    while (start_.size() < kMagicBytes) {
      char bytes[kMagicBytes];
      const size_t count = read_file(bytes, kMagicBytes - start_.size());
      if (count == 0) break;
      start_.append(bytes, count);
    }
  }
  ~RawSource() override { ::close(fd_); }
  RawSource(const RawSource&) = delete;
  RawSource& operator=(const RawSource&) = delete;

  const std::string& path() const { return path_; }
  std::string_view start() const { return start_; }

  size_t read(char* to, size_t size) override {
    size_t count = std::min(size, start_.size() - taken_);
    if (count > 0) {
      std::memcpy(to, start_.data() + taken_, count);
      taken_ += count;
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
  std::string start_;
  size_t taken_ = 0;
  int64_t position_ = 0;
};

/// What the three decompressors share: an input buffer and the error.
class CompressedSource : public ByteSource {
 public:
  explicit CompressedSource(std::unique_ptr<RawSource> raw)
      : raw_(std::move(raw)), buffer_(kBlockBytes, '\0') {}
  int64_t position() const override { return raw_->position(); }

 protected:
  /// More input; empty at the end of the file.
  std::string_view refill() {
    const size_t count = raw_->read(buffer_.data(), buffer_.size());
    return {buffer_.data(), count};
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw data_error(
        {.what = fmt::format("damaged compressed data after {} bytes: {}", raw_->position(), what),
         .where = printable(raw_->path(), 1000),
         .fix = "Fetch or compress the file again"});
  }

 private:
  std::unique_ptr<RawSource> raw_;
  std::string buffer_;
};

class GzipSource : public CompressedSource {
 public:
  explicit GzipSource(std::unique_ptr<RawSource> raw) : CompressedSource(std::move(raw)) {
    constexpr int kGzip = 16 + MAX_WBITS;
    TERATRON_ASSERT(::inflateInit2(&stream_, kGzip) == Z_OK);
  }
  ~GzipSource() override { ::inflateEnd(&stream_); }

  size_t read(char* to, size_t size) override {
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out == size) {
      if (stream_.avail_in == 0) {
        const std::string_view input = refill();
        if (input.empty()) {
          if (!between_members_) fail("it ends in the middle");
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
        fail(stream_.msg != nullptr ? stream_.msg : "not gzip");
      }
    }
    return size - stream_.avail_out;
  }

 private:
  z_stream stream_ = {};
  bool between_members_ = false;
};

class XzSource : public CompressedSource {
 public:
  explicit XzSource(std::unique_ptr<RawSource> raw) : CompressedSource(std::move(raw)) {
    constexpr uint64_t kMemory = uint64_t{1} << 30;
    TERATRON_ASSERT(::lzma_stream_decoder(&stream_, kMemory, LZMA_CONCATENATED) == LZMA_OK);
  }
  ~XzSource() override { ::lzma_end(&stream_); }

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
      if (result == LZMA_MEMLIMIT_ERROR) fail("it needs more than 1 GiB of memory");
      if (result != LZMA_OK && !finished_) fail("not xz, or it ends in the middle");
    }
    return size - stream_.avail_out;
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool input_ended_ = false;
  bool finished_ = false;
};

class ZstdSource : public CompressedSource {
 public:
  explicit ZstdSource(std::unique_ptr<RawSource> raw)
      : CompressedSource(std::move(raw)), stream_(::ZSTD_createDStream(), &::ZSTD_freeDStream) {
    TERATRON_ASSERT(stream_ != nullptr);
  }

  size_t read(char* to, size_t size) override {
    ZSTD_outBuffer output{to, size, 0};
    while (output.pos == 0) {
      if (input_.pos == input_.size) {
        const std::string_view more = refill();
        // A full output may have left decoded bytes behind: they come out without input.
        if (more.empty() && !flushing_) {
          if (expected_ != 0) fail("it ends in the middle");
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

std::unique_ptr<ByteSource> open_text(const std::string& path) {
  auto raw = std::make_unique<RawSource>(path);
  const std::string_view start = raw->start();
  if (start.starts_with("\x1f\x8b")) return std::make_unique<GzipSource>(std::move(raw));
  if (start.starts_with(std::string_view("\xfd\x37zXZ\0", 6)))
    return std::make_unique<XzSource>(std::move(raw));
  if (start.starts_with("\x28\xb5\x2f\xfd")) return std::make_unique<ZstdSource>(std::move(raw));
  return raw;
}

LineReader::LineReader(std::vector<std::string> paths, size_t max_line_bytes)
    : paths_(std::move(paths)), max_line_bytes_(max_line_bytes) {}

bool LineReader::fill() {
  const size_t before = rest_.size();
  rest_.resize(before + kBlockBytes);
  const size_t count = source_->read(rest_.data() + before, kBlockBytes);
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

LineBlock LineReader::skip_long_line() {
  LineBlock block{.file = file_, .first_line = line_, .too_long = line_};
  rest_.clear();
  while (fill()) {
    const size_t end = rest_.find('\n');
    if (end != std::string::npos) {
      rest_.erase(0, end + 1);
      break;
    }
    rest_.clear();
  }
  ++line_;
  return block;
}

std::optional<LineBlock> LineReader::next() {
  while (file_ < paths_.size()) {
    if (source_ == nullptr) {
      source_ = open_text(paths_[file_]);
      at_end_ = false;
      line_ = 1;
    }
    size_t searched = 0;
    while (!at_end_ && rest_.find('\n', searched) == std::string::npos) {
      if (rest_.size() > max_line_bytes_) return skip_long_line();
      searched = rest_.size();
      fill();
    }
    const size_t end = rest_.rfind('\n');
    if (end != std::string::npos) return take(end + 1);
    if (!rest_.empty()) return take(rest_.size());
    finished_bytes_ += source_->position();
    source_.reset();
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
