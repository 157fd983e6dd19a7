#include "teratron/pickle/byte_source.h"

#include <cstring>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/base/file.h"

namespace teratron {

namespace {

void require_inside(const ByteSource& source, int64_t bytes, int64_t offset) {
  if (offset < 0 || bytes < 0 || bytes > source.size() || offset > source.size() - bytes)
    throw checkpoint_error(
        {.what = "the file is cut off", .where = {}, .fix = "Copy it again, or use another"});
}

class FileBytes final : public ByteSource {
 public:
  explicit FileBytes(const std::filesystem::path& path) : file_(File::open(path, ExitCode::checkpoint)) {}
  int64_t size() const override { return size_; }
  void read(void* out, int64_t bytes, int64_t offset) const override {
    require_inside(*this, bytes, offset);
    file_.read(out, bytes, offset);
  }

 private:
  File file_;
  int64_t size_ = file_.size();
};

class MemoryBytes final : public ByteSource {
 public:
  explicit MemoryBytes(std::string bytes) : bytes_(std::move(bytes)) {}
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  void read(void* out, int64_t bytes, int64_t offset) const override {
    require_inside(*this, bytes, offset);
    if (bytes > 0) std::memcpy(out, bytes_.data() + offset, static_cast<size_t>(bytes));
  }

 private:
  std::string bytes_;
};

class PartialBytes final : public ByteSource {
 public:
  PartialBytes(ByteSourcePtr source, int64_t begin, int64_t bytes)
      : source_(std::move(source)), begin_(begin), bytes_(bytes) {
    require_inside(*source_, bytes, begin);
  }
  int64_t size() const override { return bytes_; }
  void read(void* out, int64_t bytes, int64_t offset) const override {
    require_inside(*this, bytes, offset);
    source_->read(out, bytes, begin_ + offset);
  }

 private:
  ByteSourcePtr source_;
  int64_t begin_;
  int64_t bytes_;
};

}  // namespace

ByteSourcePtr open_bytes(const std::filesystem::path& path) {
  return std::make_shared<FileBytes>(path);
}

ByteSourcePtr bytes_in_memory(std::string bytes) {
  return std::make_shared<MemoryBytes>(std::move(bytes));
}

ByteSourcePtr bytes_within(ByteSourcePtr source, int64_t begin, int64_t bytes) {
  return std::make_shared<PartialBytes>(std::move(source), begin, bytes);
}

std::string read_bytes(const ByteSource& source, int64_t bytes, int64_t offset) {
  require_inside(source, bytes, offset);
  std::string text(static_cast<size_t>(bytes), '\0');
  source.read(text.data(), bytes, offset);
  return text;
}

}  // namespace teratron
