#include "teratron/data/indexed/index_array.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/data/indexed/binary_file.h"

namespace teratron {

namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kMaxHeaderBytes = 192;  // of arrays with one or two dimensions
const std::string_view kMagic("\x93NUMPY\x01\x00", 8);

int64_t item_size(const std::string& descr) {
  return descr == "<i2" ? 2 : descr == "<i8" ? 8 : 4;
}

std::string descr_for(const IndexArray::Values& values) {
  constexpr const char* kNames[] = {"<i2", "<i4", "<u4", "<i8"};
  return kNames[values.index()];
}

UserError damaged(const BinaryReader& file, const std::string& what) {
  return data_error({.what = "is not a .npy index array: " + what,
                     .where = printable(file.path(), 1000),
                     .fix = "Remove it from the cache folder; it will be rebuilt"});
}

}  // namespace

std::string npy_header(const std::string& descr, int64_t rows, int64_t columns) {
  const std::string shape =
      columns == 0 ? fmt::format("({},)", rows) : fmt::format("({}, {})", rows, columns);
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr, shape);
  // numpy leaves room for the first dimension to grow to 21 digits, then pads to the alignment.
  text.append(21 - std::to_string(rows).size(), ' ');
  const size_t prefix = kMagic.size() + 2;
  while ((prefix + text.size() + 1) % kAlignment != 0) text += ' ';
  text += '\n';
  const auto length = static_cast<uint16_t>(text.size());
  std::string bytes(kMagic);
  bytes += static_cast<char>(length & 0xff);
  bytes += static_cast<char>(length >> 8);
  return bytes + text;
}

IndexArray::IndexArray(Values values, int64_t columns)
    : values_(std::move(values)), columns_(columns), descr_(descr_for(values_)) {
  const auto size = std::visit([](const auto& v) { return static_cast<int64_t>(v.size()); }, values_);
  TERATRON_ASSERT(columns == 0 || size % columns == 0, "{} values in {} columns", size, columns);
  rows_ = columns == 0 ? size : size / columns;
}

IndexArray IndexArray::open(const std::string& path) {
  IndexArray array;
  array.file_ = std::make_shared<BinaryReader>(path);
  const BinaryReader& file = *array.file_;
  // Accept only what save() writes: the header must equal npy_header() of the fields parsed from it.
  std::string header(static_cast<size_t>(std::min(file.size(), kMaxHeaderBytes)), '\0');
  file.read_values(0, std::span(header));
  char descr[4] = {};
  const char* text = header.c_str() + std::min<size_t>(header.size(), kMagic.size() + 2);
  const int fields = std::sscanf(text, "{'descr': '%3[<iu248]', 'fortran_order': False, 'shape': (%ld, %ld",
                                 descr, &array.rows_, &array.columns_);
  array.descr_ = descr;
  const bool known =
      array.descr_ == "<i2" || array.descr_ == "<i4" || array.descr_ == "<u4" || array.descr_ == "<i8";
  if (fields < 2 || !known || array.rows_ < 0 || array.columns_ < 0 || (fields == 3 && array.columns_ == 0)) {
    throw damaged(file, "unexpected header");
  }
  const std::string expected = npy_header(array.descr_, array.rows_, array.columns_);
  if (!header.starts_with(expected)) throw damaged(file, "unexpected header");
  array.data_offset_ = static_cast<int64_t>(expected.size());
  const auto bytes =
      static_cast<__int128>(array.rows_) * std::max<int64_t>(array.columns_, 1) * item_size(array.descr_);
  if (bytes != file.size() - array.data_offset_) throw damaged(file, "size and shape disagree");
  return array;
}

int64_t IndexArray::at(int64_t row, int64_t column) const {
  TERATRON_ASSERT(row >= 0 && row < rows_ && column >= 0 && column < std::max<int64_t>(columns_, 1),
                  "({}, {}) of ({}, {})", row, column, rows_, columns_);
  const int64_t i = columns_ == 0 ? row : row * columns_ + column;
  if (file_ == nullptr) {
    return std::visit([&](const auto& values) { return static_cast<int64_t>(values[i]); }, values_);
  }
  const int64_t offset = data_offset_ + i * item_size(descr_);
  if (descr_ == "<i2") return file_->read_value<int16_t>(offset);
  if (descr_ == "<i4") return file_->read_value<int32_t>(offset);
  if (descr_ == "<u4") return file_->read_value<uint32_t>(offset);
  return file_->read_value<int64_t>(offset);
}

std::vector<int64_t> IndexArray::values(int64_t first, int64_t count) const {
  TERATRON_ASSERT(columns_ == 0 && first >= 0 && count >= 0 && count <= rows_ - first, "[{}, + {}) of {}",
                  first, count, rows_);
  const auto from = [&](const auto& type) -> std::vector<int64_t> {
    using T = std::decay_t<decltype(type)>;
    std::vector<T> read(static_cast<size_t>(count));
    file_->read_values(data_offset_ + first * static_cast<int64_t>(sizeof(T)), std::span(read));
    return {read.begin(), read.end()};
  };
  if (file_ != nullptr) {
    if (descr_ == "<i2") return from(int16_t{});
    if (descr_ == "<i4") return from(int32_t{});
    return descr_ == "<u4" ? from(uint32_t{}) : from(int64_t{});
  }
  return std::visit(
      [&](const auto& all) { return std::vector<int64_t>(all.begin() + first, all.begin() + first + count); },
      values_);
}

void IndexArray::save(const std::string& path) const {
  TERATRON_ASSERT(file_ == nullptr, "{} is already a file", path);
  BinaryWriter file(path);
  const std::string header = npy_header(descr_, rows_, columns_);
  file.write_values(std::span<const char>(header));
  std::visit([&](const auto& values) { file.write_values(std::span(values)); }, values_);
  file.commit();
}

}  // namespace teratron
