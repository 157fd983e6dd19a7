#include "teratron/ckpt/safetensors.h"

#include <array>

#include <nlohmann/json.hpp>

namespace teratron {

namespace {

constexpr int64_t max_header_bytes = 100'000'000;  // the limit of the reference implementation
constexpr int64_t length_bytes = 8;
constexpr int64_t writeback_bytes = int64_t{32} << 20;

int64_t decode_length(const std::array<unsigned char, length_bytes>& raw, const File& file,
                      int64_t file_bytes) {
  uint64_t length = 0;
  for (int i = length_bytes - 1; i >= 0; --i) length = length << 8 | raw[i];
  const std::string where = printable(file.path().string(), 4096);
  if (length > static_cast<uint64_t>(max_header_bytes)) {
    throw checkpoint_error({.what = fmt::format("safetensors header of {} bytes; at most {} are accepted",
                                                length, max_header_bytes),
                            .where = where});
  }
  if (static_cast<int64_t>(length) > file_bytes - length_bytes) {
    throw checkpoint_error(
        {.what = fmt::format("safetensors header of {} bytes in a file of {}", length, file_bytes),
         .where = where,
         .fix = "The file is truncated or not a safetensors file"});
  }
  return static_cast<int64_t>(length);
}

std::string encode_header(const std::vector<SafetensorsWriter::Tensor>& tensors,
                          const std::map<std::string, std::string>& metadata, int64_t& data_bytes) {
  const auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(); };
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  data_bytes = 0;
  for (const SafetensorsWriter::Tensor& tensor : tensors) {
    const std::optional<int64_t> numel = checked_numel(tensor.shape);
    TERATRON_ASSERT(numel.has_value(), "{}", tensor.name);
    const int64_t end = data_bytes + *numel * size_of(tensor.dtype);
    if (text.size() > 1) text += ',';
    text += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", quoted(tensor.name),
                        name_of(tensor.dtype), fmt::join(tensor.shape, ","), data_bytes, end);
    data_bytes = end;
  }
  text += '}';
  // Trailing spaces are legal; they align the data to 64 bytes.
  while ((text.size() + length_bytes) % 64 != 0) text += ' ';
  std::string header;
  for (size_t i = 0; i < length_bytes; ++i) header += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return header + text;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(File::open(path, ExitCode::checkpoint)) {
  const int64_t file_bytes = file_.size();
  std::array<unsigned char, length_bytes> raw = {};
  file_.read(raw.data(), length_bytes, 0);
  const int64_t length = decode_length(raw, file_, file_bytes);
  std::string json(static_cast<size_t>(length), '\0');
  file_.read(json.data(), length, length_bytes);
  data_start_ = length_bytes + length;
  header_ = parse_safetensors_header(json, file_bytes - data_start_, printable(path.string(), 4096));
  for (size_t i = 0; i < header_.entries.size(); ++i) by_name_.emplace(header_.entries[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.entries[found->second];
}

void SafetensorsFile::read(const SafetensorsEntry& entry, int64_t offset, int64_t bytes, void* out) const {
  TERATRON_ASSERT(offset >= 0 && bytes >= 0 && bytes <= entry.bytes - offset, "{} bytes at {} of {}", bytes,
                  offset, entry.name);
  file_.read(out, bytes, data_start_ + entry.begin + offset);
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<Tensor>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : header_(encode_header(tensors, metadata, data_bytes_)),
      file_(File::create(path, ExitCode::checkpoint)) {
  file_.write(header_);
}

void SafetensorsWriter::write(const void* data, int64_t bytes) {
  TERATRON_ASSERT(bytes <= data_bytes_ - written_, "{}: more data than declared", file_.path().string());
  file_.write(data, bytes);
  // Early and in large pieces: else the disk is idle until the page cache is full, then everything waits.
  if (written_ / writeback_bytes != (written_ + bytes) / writeback_bytes) file_.start_writeback();
  written_ += bytes;
}

void SafetensorsWriter::finish() {
  TERATRON_ASSERT(written_ == data_bytes_, "{}: {} of {} bytes were written", file_.path().string(), written_,
                  data_bytes_);
  file_.sync();
  file_.close();
}

}  // namespace teratron
