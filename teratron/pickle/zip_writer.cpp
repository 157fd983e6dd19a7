#include "teratron/pickle/zip_writer.h"

#include <zlib.h>

#include "teratron/base/error.h"
#include "teratron/pickle/little_endian.h"

namespace teratron {

namespace {

constexpr int64_t most_entries = 0xffff, alignment = 64;
constexpr uint64_t in_zip64 = 0xffffffff;  // in place of a number that is in a zip64 field

std::string size64(int64_t value) {
  return little_endian(static_cast<uint64_t>(value), 8);
}

// Version 4.5 knows zip64; flags: UTF-8 names, and sizes and CRC after the contents; stored; no date.
std::string common_header() {
  return little_endian(45, 2) + little_endian(0x0808, 2) + little_endian(0, 2) + little_endian(0, 4);
}

std::string extra_field(uint64_t id, const std::string& contents) {
  return little_endian(id, 2) + little_endian(contents.size(), 2) + contents;
}

}  // namespace

ZipWriter::ZipWriter(const std::filesystem::path& path, int64_t most)
    : own_(File::create(path, ExitCode::checkpoint)), file_(&*own_), most_(most) {}

std::string ZipWriter::size32(int64_t value) const {
  return little_endian(value > most_ ? in_zip64 : static_cast<uint64_t>(value), 4);
}

void ZipWriter::write(std::string_view text) {
  file_->write(text);
  at_ += static_cast<int64_t>(text.size());
}

void ZipWriter::begin(const std::string& name, int64_t bytes) {
  TERATRON_ASSERT(left_ == 0, "{}", name);
  entries_.push_back({.name = name, .bytes = bytes, .header = at_});
  const bool large = bytes > most_;
  std::string extra = large ? extra_field(1, size64(0) + size64(0)) : "";
  const int64_t unpadded = at_ + 30 + static_cast<int64_t>(name.size() + extra.size()) + 4;
  const auto padding = static_cast<size_t>((alignment - unpadded % alignment) % alignment);
  extra += extra_field(0x4246, std::string(padding, 'Z'));  // "FB", as torch has it
  // They follow the contents.
  const std::string sizes = little_endian(large ? in_zip64 : 0, 4);
  write("PK\3\4" + common_header() + little_endian(0, 4) + sizes + sizes + little_endian(name.size(), 2) +
        little_endian(extra.size(), 2) + name + extra);
  left_ = bytes;
}

void ZipWriter::append(const void* data, int64_t bytes) {
  TERATRON_ASSERT(bytes <= left_, "{}", entries_.back().name);
  Entry& entry = entries_.back();
  entry.crc =
      static_cast<uint32_t>(crc32_z(entry.crc, static_cast<const Bytef*>(data), static_cast<size_t>(bytes)));
  file_->write(data, bytes);
  at_ += bytes;
  left_ -= bytes;
}

void ZipWriter::end() {
  const Entry& entry = entries_.back();
  TERATRON_ASSERT(left_ == 0, "{}", entry.name);
  const auto size = [&](int64_t value) { return entry.bytes > most_ ? size64(value) : size32(value); };
  write("PK\7\10" + little_endian(entry.crc, 4) + size(entry.bytes) + size(entry.bytes));
}

void ZipWriter::add(const std::string& name, std::string_view contents) {
  begin(name, static_cast<int64_t>(contents.size()));
  append(contents.data(), static_cast<int64_t>(contents.size()));
  end();
}

std::string ZipWriter::directory() const {
  std::string text;
  for (const Entry& entry : entries_) {
    std::string large;
    if (entry.bytes > most_) large = size64(entry.bytes) + size64(entry.bytes);
    if (entry.header > most_) large += size64(entry.header);
    const std::string extra = large.empty() ? "" : extra_field(1, large);
    text += "PK\1\2" + little_endian(45, 2) + common_header() + little_endian(entry.crc, 4) +
            size32(entry.bytes) + size32(entry.bytes) + little_endian(entry.name.size(), 2) +
            little_endian(extra.size(), 2) + little_endian(0, 2) + little_endian(0, 2) + little_endian(0, 2) +
            little_endian(0, 4) + size32(entry.header) + entry.name + extra;
  }
  return text;
}

void ZipWriter::finish() {
  TERATRON_ASSERT(left_ == 0, "an entry is not complete");
  const std::string contents = directory();
  const int64_t begin = at_, bytes = static_cast<int64_t>(contents.size());
  const auto count = static_cast<int64_t>(entries_.size());
  write(contents);
  if (begin > most_ || bytes > most_ || count >= most_entries) {
    const std::string record = little_endian(45, 2) + little_endian(45, 2) + little_endian(0, 4) +
                               little_endian(0, 4) + size64(count) + size64(count) + size64(bytes) +
                               size64(begin);
    const int64_t at = at_;
    write("PK\6\6" + size64(static_cast<int64_t>(record.size())) + record);
    write("PK\6\7" + little_endian(0, 4) + size64(at) + little_endian(1, 4));
  }
  const auto count16 = little_endian(static_cast<uint64_t>(std::min(count, most_entries)), 2);
  write("PK\5\6" + little_endian(0, 4) + count16 + count16 + size32(bytes) + size32(begin) +
        little_endian(0, 2));
  if (!own_) return;
  own_->sync();
  own_->close();
}

}  // namespace teratron
