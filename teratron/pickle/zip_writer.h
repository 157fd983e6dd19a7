// A zip file with stored entries, written in one pass and zip64 where sizes ask for it. The contents of
// entries are aligned to 64 bytes, like torch.save's, so that they can be mapped into memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/file.h"

namespace teratron {

class ZipWriter {
 public:
  /// The largest size or offset without zip64.
  static constexpr int64_t most_without_zip64 = 0xfffffffe;

  /// Creates the file, which must not exist. Sizes and offsets beyond `most` are zip64's.
  explicit ZipWriter(const std::filesystem::path& path, int64_t most = most_without_zip64);
  /// Appends to a file that holds others before it, and that the caller syncs.
  explicit ZipWriter(File& file) : file_(&file), most_(most_without_zip64) {}

  void begin(const std::string& name, int64_t bytes);
  /// The next bytes of the entry.
  void append(const void* data, int64_t bytes);
  /// Together they must be as many as announced.
  void end();

  void add(const std::string& name, std::string_view contents);
  /// Writes the directory and syncs. Without it the file is not a zip file.
  void finish();
  /// Written so far.
  int64_t bytes() const { return at_; }

 private:
  struct Entry {
    std::string name;
    int64_t bytes = 0;
    int64_t header = 0;  // offset
    uint32_t crc = 0;
  };
  void write(std::string_view text);
  std::string directory() const;
  std::string size32(int64_t value) const;

  std::optional<File> own_;
  File* file_;
  int64_t most_;
  int64_t at_ = 0;
  int64_t left_ = 0;  // of the entry
  std::vector<Entry> entries_;
};

}  // namespace teratron
