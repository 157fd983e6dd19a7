// One- and two-dimensional integer arrays as .npy files, read entry by entry so that an index of any size
// costs no memory, or held in memory when there is no cache folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "teratron/data/indexed/input_file.h"

namespace teratron {

/// Bytes of numpy.save(format version 1.0) for a C-ordered little-endian array; `descr` is numpy's, e.g.
/// "<i4"; columns 0 means one dimension.
std::string npy_header(const std::string& descr, int64_t rows, int64_t columns);

/// An index array: values of i16, i32, u32 or i64, addressed by row (and column).
class IndexArray {
 public:
  using Values =
      std::variant<std::vector<int16_t>, std::vector<int32_t>, std::vector<uint32_t>, std::vector<int64_t>>;

  IndexArray() = default;
  /// Holds `values` in memory, `columns` per row (0: one dimension).
  explicit IndexArray(Values values, int64_t columns = 0);
  /// Refers to a .npy file. A damaged one is UserError(data).
  static IndexArray open(const std::string& path);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  const std::string& descr() const { return descr_; }
  int64_t at(int64_t row, int64_t column = 0) const;

  /// Writes the .npy file, which appears complete or not at all.
  void save(const std::string& path) const;

 private:
  Values values_;
  std::shared_ptr<const InputFile> file_;  // null: the values are in memory
  int64_t data_offset_ = 0;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  std::string descr_ = "<i4";
};

}  // namespace teratron
