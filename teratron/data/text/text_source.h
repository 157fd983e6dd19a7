// Text files as blocks of whole lines: plain, gzip, xz or zstd, whatever the name says, or standard input.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace teratron {

/// A stream of bytes. Damaged compressed data is UserError(data).
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Reads up to `size` bytes; 0 only at the end.
  virtual size_t read(char* to, size_t size) = 0;
  /// Bytes taken from the file so far, before decompression.
  virtual int64_t position() const = 0;
};

/// Opens a file, or standard input for "-". Compression is recognised by the first bytes.
std::unique_ptr<ByteSource> open_text(const std::string& path);

/// Whole lines of one file. The text ends with `padding` bytes that do not belong to it.
struct LineBlock {
  size_t file = 0;         // which input
  int64_t first_line = 0;  // number of the first line, from 1
  std::string text;        // lines, each ending in '\n' (one is added to a last line without)
  int64_t too_long = 0;    // number of a line that was left out because it exceeds the limit; 0: none
};

/// The lines of several files, one after the other, in blocks of about 1 MiB (a longer line is a block of its own).
class LineReader {
 public:
  /// Lines longer than `max_line_bytes` are skipped and reported as LineBlock::too_long (a block without text).
  LineReader(std::vector<std::string> paths, size_t max_line_bytes);
  /// The next block; nothing at the end of the last file.
  std::optional<LineBlock> next();
  /// Bytes taken from the files so far, before decompression.
  int64_t position() const { return finished_bytes_ + (source_ ? source_->position() : 0); }

 private:
  bool fill();
  LineBlock take(size_t size);
  LineBlock skip_long_line();

  std::vector<std::string> paths_;
  size_t max_line_bytes_;
  size_t file_ = 0;
  std::unique_ptr<ByteSource> source_;
  bool at_end_ = false;  // of the current file
  std::string rest_;     // read but not yet given out
  int64_t line_ = 1;
  int64_t finished_bytes_ = 0;
};

/// Files that match shell patterns (*, ?, [...]), sorted within each pattern; a plain name stands for itself.
/// A pattern that matches nothing is UserError(data).
std::vector<std::string> expand_patterns(const std::vector<std::string>& patterns);

}  // namespace teratron
