// TensorBoard event files.
//
// A file is a sequence of TFRecords: u64 length, u32 masked crc32c of the length, the protobuf Event, u32
// masked crc32c of it; little-endian. mask(c) = rotate_right(c, 15) + 0xa282ead8. The first record names the
// format, "brain.Event:2". https://www.tensorflow.org/tutorials/load_data/tfrecord
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "teratron/base/file.h"

namespace teratron {

/// CRC-32C (Castagnoli), unmasked.
uint32_t crc32c(std::string_view bytes);

/// One event file. Each call appends whole records, so that TensorBoard can follow a running job. I/O errors
/// are UserError(config) for an invalid path, else Fault.
class EventFileWriter {
 public:
  using Scalars = std::vector<std::pair<std::string, double>>;  // tag, value

  /// Creates the directory and `events.out.tfevents.<seconds>.<host>.<pid>.<random>` in it.
  EventFileWriter(const std::filesystem::path& directory, double wall_time);

  /// All points of a step in one record, NaN and infinities included.
  void scalars(const Scalars& points, int64_t step, double wall_time);
  /// Markdown, shown under TEXT. Invalid UTF-8 is replaced by U+FFFD.
  void text(std::string_view tag, std::string_view markdown, int64_t step, double wall_time);

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void append_record(const std::string& event);

  File file_;
};

}  // namespace teratron
