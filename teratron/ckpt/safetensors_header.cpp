#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "teratron/ckpt/safetensors.h"

namespace teratron {

namespace {

constexpr size_t max_rank = 32;

// Accepts only the structure of a header, so memory stays proportional to its size.
class HeaderParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderParser(const std::string& where) : where_(where) {}
  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(size_t) override {
    switch (state_) {
      case State::top:
        state_ = State::names;
        return true;
      case State::names:
        if (name_ == "__metadata__") {
          state_ = State::metadata;
        } else {
          state_ = State::fields;
          seen_fields_ = 0;
          header_.entries.push_back({.name = name_});
        }
        return true;
      default:
        reject("an object where a value is expected");
    }
  }

  bool key(std::string& key) override {
    if (state_ == State::names) {
      name_ = std::move(key);
      if (!names_.insert(name_).second) reject("the name appears twice");
    } else if (state_ == State::metadata) {
      key_ = std::move(key);
      if (header_.metadata.contains(key_)) reject(fmt::format("key \"{}\" appears twice", printable(key_)));
    } else {
      start_field(key);
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::fields) {
      if (seen_fields_ != 7) reject("dtype, shape and data_offsets are all required");
      state_ = State::names;
    } else if (state_ == State::metadata) {
      state_ = State::names;
    } else {
      state_ = State::end;
    }
    return true;
  }

  bool string(std::string& value) override {
    if (state_ == State::metadata) {
      header_.metadata.emplace(key_, std::move(value));
    } else if (state_ == State::fields && field_ == Field::dtype) {
      const std::optional<Dtype> dtype = dtype_from_name(value);
      if (!dtype) reject(fmt::format("unknown dtype \"{}\"", printable(value)));
      header_.entries.back().dtype = *dtype;
    } else {
      reject("a string where none is expected");
    }
    return true;
  }

  bool start_array(size_t) override {
    if (state_ != State::fields || field_ == Field::dtype) reject("an array where none is expected");
    state_ = State::numbers;
    offsets_.clear();
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (state_ != State::numbers) reject("a number where none is expected");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) reject("a number overflows");
    std::vector<int64_t>& numbers = field_ == Field::shape ? header_.entries.back().shape : offsets_;
    numbers.push_back(static_cast<int64_t>(value));
    if (numbers.size() > max_rank) reject(fmt::format("more than {} numbers", max_rank));
    return true;
  }

  bool end_array() override {
    state_ = State::fields;
    if (field_ != Field::offsets) return true;
    if (offsets_.size() != 2) reject("data_offsets must be two numbers");
    if (offsets_[1] < offsets_[0]) reject("data_offsets are reversed");
    header_.entries.back().begin = offsets_[0];
    header_.entries.back().bytes = offsets_[1] - offsets_[0];
    return true;
  }

  bool null() override { reject("null where a value is expected"); }
  bool boolean(bool) override { reject("a boolean where none is expected"); }
  bool number_integer(int64_t value) override { reject(fmt::format("negative number {}", value)); }
  bool number_float(double, const std::string& text) override {
    reject(fmt::format("{} is not a whole number in range", printable(text)));
  }
  bool binary(binary_t&) override { reject("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    throw checkpoint_error(
        {.what = fmt::format("the safetensors header is not valid JSON at byte {}", position + 8),
         .where = where_});
  }

 private:
  enum class State : uint8_t { top, names, metadata, fields, numbers, end };
  enum class Field : uint8_t { dtype, shape, offsets };

  void start_field(const std::string& key) {
    if (key == "dtype") {
      field_ = Field::dtype;
    } else if (key == "shape") {
      field_ = Field::shape;
    } else if (key == "data_offsets") {
      field_ = Field::offsets;
    } else {
      reject(fmt::format("unknown key \"{}\"", printable(key)));
    }
    const int bit = 1 << static_cast<int>(field_);
    if ((seen_fields_ & bit) != 0) reject(fmt::format("key \"{}\" appears twice", printable(key)));
    seen_fields_ |= bit;
  }

  [[noreturn]] void reject(const std::string& what) const {
    const std::string tensor = name_.empty() ? "" : fmt::format(", tensor \"{}\"", printable(name_));
    throw checkpoint_error(
        {.what = fmt::format("bad safetensors header{}: {}", tensor, what), .where = where_});
  }

  const std::string& where_;
  SafetensorsHeader header_;
  State state_ = State::top;
  Field field_ = Field::dtype;
  int seen_fields_ = 0;
  std::string name_;
  std::string key_;
  std::vector<int64_t> offsets_;
  std::unordered_set<std::string> names_;
};

// Sorts by offset and checks that the tensors tile the data section.
void check_offsets(std::vector<SafetensorsEntry>& entries, int64_t data_bytes, const std::string& where) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
  });
  const auto reject = [&where](const SafetensorsEntry& entry, const std::string& what) {
    return checkpoint_error(
        {.what = fmt::format("tensor \"{}\" {}", printable(entry.name), what), .where = where});
  };
  int64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::optional<int64_t> numel = checked_numel(entry.shape);
    int64_t bytes = 0;
    if (!numel || __builtin_mul_overflow(*numel, size_of(entry.dtype), &bytes)) {
      throw reject(entry, fmt::format("has shape [{}], which overflows", fmt::join(entry.shape, ", ")));
    }
    if (bytes != entry.bytes) {
      throw reject(entry, fmt::format("needs {} bytes for {} [{}], its offsets span {}", bytes,
                                      name_of(entry.dtype), fmt::join(entry.shape, ", "), entry.bytes));
    }
    if (entry.begin < end)
      throw reject(entry, fmt::format("overlaps the previous one at byte {}", entry.begin));
    if (entry.begin > end)
      throw reject(entry, fmt::format("leaves a hole of {} bytes before it", entry.begin - end));
    if (entry.bytes > data_bytes - entry.begin) {
      throw reject(entry, fmt::format("extends {} bytes beyond the end of the file",
                                      entry.bytes - (data_bytes - entry.begin)));
    }
    end = entry.begin + entry.bytes;
  }
  if (end != data_bytes) {
    throw checkpoint_error(
        {.what = fmt::format("{} bytes at the end do not belong to any tensor", data_bytes - end),
         .where = where});
  }
}

}  // namespace

std::optional<int64_t> checked_numel(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(numel, size, &numel)) return std::nullopt;
  }
  return numel;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes,
                                           const std::string& where) {
  if (json.empty() || json.front() != '{') {
    throw checkpoint_error({.what = "the safetensors header is not a JSON object", .where = where});
  }
  HeaderParser parser(where);
  nlohmann::json::sax_parse(json.begin(), json.end(), &parser);
  SafetensorsHeader header = parser.take();
  check_offsets(header.entries, data_bytes, where);
  return header;
}

}  // namespace teratron
