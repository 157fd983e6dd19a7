// One- and two-dimensional integer arrays: in memory, or as .npy files read entry by entry, so that an index
// of any size needs no memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "teratron/data/indexed/binary_file.h"

namespace teratron {

/// Header that numpy.save (format version 1.0) writes for a C-ordered little-endian array. `descr` is
/// numpy's, e.g. "<i4"; 0 columns: one dimension.
std::string npy_header(const std::string& descr, int64_t rows, int64_t columns);

/// Index of type i16, i32, u32 or i64, addressed by row (and column).
class IndexArray {
 public:
  using Values =
      std::variant<std::vector<int16_t>, std::vector<int32_t>, std::vector<uint32_t>, std::vector<int64_t>>;

  IndexArray() = default;
  /// Stores `values` in memory, `columns` per row (0: one dimension).
  explicit IndexArray(Values values, int64_t columns = 0);
  /// Opens a .npy file. A damaged one is UserError(data).
  static IndexArray open(const std::string& path);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  const std::string& descr() const { return descr_; }
  int64_t at(int64_t row, int64_t column = 0) const;
  /// `count` rows of an array of one dimension.
  std::vector<int64_t> values(int64_t first, int64_t count) const;

  /// Writes a .npy file, atomically.
  void save(const std::string& path) const;

 private:
  Values values_;
  std::shared_ptr<const BinaryReader> file_;  // null: the values are in memory
  int64_t data_offset_ = 0;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  std::string descr_ = "<i4";
};

}  // namespace teratron
