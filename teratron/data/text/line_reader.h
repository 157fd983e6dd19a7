// Blocks of whole lines from text files, plain or compressed with gzip, xz or zstd, or from standard input.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace teratron {

/// A byte stream. Damaged compressed data is UserError(data).
class InputStream {
 public:
  virtual ~InputStream() = default;
  /// Reads up to `size` bytes; returns 0 only at the end.
  virtual size_t read(char* to, size_t size) = 0;
  /// Bytes read from the file so far, before decompression.
  virtual int64_t position() const = 0;
};

/// Opens a regular file, or standard input for "-". Compression is detected by the first bytes, not by the
/// name.
std::unique_ptr<InputStream> open_input(const std::string& path);

/// Whole lines of one file.
struct LineBlock {
  size_t file = 0;         // index of the input
  int64_t first_line = 0;  // number of the first line, from 1
  std::string text;        // lines, each ending in '\n' (added to a last line without one)
  int64_t too_long = 0;    // number of a line that exceeds the limit and is skipped; 0: none
};

/// The lines of several files in blocks of about 1 MiB; a longer line is a separate block.
class LineReader {
 public:
  /// A line longer than `max_line_bytes` is reported by a block with too_long and no text; while it is
  /// skipped, blocks are empty.
  LineReader(std::vector<std::string> paths, size_t max_line_bytes);
  /// The next block; nothing at the end of the last file.
  std::optional<LineBlock> next();
  /// Bytes read from the files so far, before decompression.
  int64_t position() const { return finished_bytes_ + (stream_ ? stream_->position() : 0); }

 private:
  bool fill();
  LineBlock take(size_t size);
  LineBlock skip();

  std::vector<std::string> paths_;
  size_t max_line_bytes_;
  size_t file_ = 0;
  std::unique_ptr<InputStream> stream_;
  bool at_end_ = false;    // of the current file
  bool skipping_ = false;  // within a line that is too long
  std::string rest_;       // read but not yet returned
  int64_t line_ = 1;
  int64_t finished_bytes_ = 0;
};

/// Files that match shell patterns (*, ?, [...]), sorted within each pattern; existing paths are returned
/// unchanged. A pattern without a match is UserError(data).
std::vector<std::string> expand_patterns(const std::vector<std::string>& patterns);

}  // namespace teratron
