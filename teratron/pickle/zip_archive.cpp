#include "teratron/pickle/zip_archive.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <zlib.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// Little-endian; 0 beyond the end.
uint64_t number_at(std::string_view text, size_t offset, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes && offset + i < text.size(); ++i)
    value |= uint64_t{static_cast<unsigned char>(text[offset + i])} << (8 * i);
  return value;
}

constexpr uint64_t most_zip_entries = uint64_t{1} << 18;
// All that is unpacked. Weights are hardly packed to less than a tenth.
constexpr uint64_t least_unpacked_bytes = uint64_t{32} << 20, most_unpacking = 16;

constexpr std::string_view local_header = "PK\3\4", central_header = "PK\1\2", end_header = "PK\5\6",
                           end64_header = "PK\6\6", locator64 = "PK\6\7";

// Sizes and offset of 0xffffffff are in the zip64 field, in this order.
void read_zip64(std::string_view extra, uint64_t& bytes, uint64_t& stored, uint64_t& header) {
  for (size_t at = 0; at + 4 <= extra.size();) {
    const size_t length = number_at(extra, at + 2, 2);
    if (number_at(extra, at, 2) == 1) {
      size_t field = at + 4;
      for (uint64_t* value : {&bytes, &stored, &header}) {
        if (*value != 0xffffffff) continue;
        *value = number_at(extra, field, 8);
        field += 8;
      }
      return;
    }
    at += 4 + length;
  }
}

UserError damaged_zip(const std::string& what, const std::string& where) {
  return checkpoint_error(
      {.what = what,
       .where = where,
       .fix = "The file is damaged or cut off: copy it again, or use another checkpoint"});
}

UserError damaged_entry(const std::string& name, const std::string& where) {
  return damaged_zip(fmt::format("the zip file's entry '{}' is damaged", printable(name)), where);
}

// A stored entry.
class CheckedBytes final : public ByteSource {
 public:
  CheckedBytes(ByteSourcePtr bytes, uint32_t crc, std::string name, std::string where)
      : bytes_(std::move(bytes)), crc_(crc), name_(std::move(name)), where_(std::move(where)) {}
  int64_t size() const override { return bytes_->size(); }
  void read(void* out, int64_t bytes, int64_t offset) const override {
    if (crc_ != 0) std::call_once(checked_, [this] { check(); });
    if (bytes > 0) bytes_->read(out, bytes, offset);
  }

 private:
  void check() const {
    std::vector<Bytef> piece(static_cast<size_t>(std::min(piece_bytes, size())));
    uLong crc = crc32_z(0, nullptr, 0);
    for (int64_t at = 0; at < size(); at += piece_bytes) {
      const int64_t bytes = std::min(piece_bytes, size() - at);
      bytes_->read(piece.data(), bytes, at);
      crc = crc32_z(crc, piece.data(), static_cast<size_t>(bytes));
    }
    if (crc != crc_) throw damaged_entry(name_, where_);
  }

  static constexpr int64_t piece_bytes = 4 << 20;

  ByteSourcePtr bytes_;
  uint32_t crc_;
  std::string name_, where_;
  mutable std::once_flag checked_;
};

}  // namespace

bool ZipArchive::is_zip(const ByteSource& source) {
  return source.size() >= 22 && read_bytes(source, 4, 0) == local_header;
}

void ZipArchive::fail(const std::string& what) const {
  throw damaged_zip(what, where_);
}

ZipArchive::ZipArchive(ByteSourcePtr source, std::string where)
    : source_(std::move(source)), where_(std::move(where)) {
  const int64_t size = source_->size();
  const int64_t tail_bytes = std::min<int64_t>(size, 65535 + 22 + 20);
  const std::string tail = read_bytes(*source_, tail_bytes, size - tail_bytes);
  const size_t end = tail.rfind(end_header);
  if (end == std::string::npos || end + 22 > tail.size()) fail("the zip file has no directory");
  uint64_t count = number_at(tail, end + 10, 2);
  uint64_t bytes = number_at(tail, end + 12, 4);
  uint64_t offset = number_at(tail, end + 16, 4);
  if (end >= 20 && tail.compare(end - 20, 4, locator64) == 0) {
    const auto end64 = static_cast<int64_t>(number_at(tail, end - 20 + 8, 8));
    if (end64 < 0 || end64 > size - 56) fail("the zip file's directory lies outside of it");
    const std::string record = read_bytes(*source_, 56, end64);
    if (!record.starts_with(end64_header)) fail("the zip file's directory is not valid");
    count = number_at(record, 32, 8);
    bytes = number_at(record, 40, 8);
    offset = number_at(record, 48, 8);
  }
  const auto limit = static_cast<uint64_t>(size);
  if (bytes > limit || offset > limit - bytes || bytes > uint64_t{1} << 28)
    fail("the zip file's directory lies outside of it");
  read_directory(read_bytes(*source_, static_cast<int64_t>(bytes), static_cast<int64_t>(offset)), count);
}

void ZipArchive::read_directory(const std::string& directory, uint64_t count) {
  if (count > most_zip_entries) fail(fmt::format("the zip file has {} entries", count));
  uint64_t unpacked = least_unpacked_bytes + most_unpacking * static_cast<uint64_t>(source_->size());
  size_t at = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (directory.compare(at, 4, central_header) != 0 || directory.size() - at < 46)
      fail("the zip file's directory is not valid");
    const size_t name_bytes = number_at(directory, at + 28, 2),
                 extra_bytes = number_at(directory, at + 30, 2);
    const size_t comment_bytes = number_at(directory, at + 32, 2);
    if (name_bytes + extra_bytes + comment_bytes > directory.size() - at - 46)
      fail("the zip file's directory is not valid");
    const std::string name = directory.substr(at + 46, name_bytes);
    uint64_t stored = number_at(directory, at + 20, 4), bytes = number_at(directory, at + 24, 4);
    uint64_t header = number_at(directory, at + 42, 4);
    read_zip64(std::string_view(directory).substr(at + 46 + name_bytes, extra_bytes), bytes, stored, header);
    const auto size = static_cast<uint64_t>(source_->size());
    if (stored > size || header > size - stored)
      fail(fmt::format("the zip file's entry '{}' lies outside of it", printable(name)));
    if (number_at(directory, at + 10, 2) == 0) {
      if (bytes != stored) fail(fmt::format("the zip file's entry '{}' is not valid", printable(name)));
    } else if (bytes > unpacked) {
      fail(fmt::format("the zip file unpacks to more than {} times its size", most_unpacking));
    } else {
      unpacked -= bytes;
    }
    if ((number_at(directory, at + 8, 2) & 1) != 0) fail("the zip file is encrypted");
    const Entry entry{.method = static_cast<uint16_t>(number_at(directory, at + 10, 2)),
                      .crc = static_cast<uint32_t>(number_at(directory, at + 16, 4)),
                      .stored_bytes = static_cast<int64_t>(stored),
                      .bytes = static_cast<int64_t>(bytes),
                      .header = static_cast<int64_t>(header)};
    if (!entries_.emplace(name, entry).second)
      fail(fmt::format("the zip file has two entries '{}'", printable(name)));
    at += 46 + name_bytes + extra_bytes + comment_bytes;
  }
}

ByteSourcePtr ZipArchive::open(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail(fmt::format("the zip file lacks '{}'", printable(name)));
  const Entry& entry = found->second;
  if (entry.header > source_->size() - 30) fail("the zip file is cut off");
  const std::string header = read_bytes(*source_, 30, entry.header);
  const auto skipped = static_cast<int64_t>(30 + number_at(header, 26, 2) + number_at(header, 28, 2));
  if (!header.starts_with(local_header) || entry.stored_bytes > source_->size() - entry.header - skipped)
    fail(fmt::format("the zip file's entry '{}' is not valid", printable(name)));
  ByteSourcePtr stored = bytes_within(source_, entry.header + skipped, entry.stored_bytes);
  if (entry.method == 0 && entry.bytes == entry.stored_bytes)
    return std::make_shared<CheckedBytes>(std::move(stored), entry.crc, name, where_);
  if (entry.method != Z_DEFLATED) fail(fmt::format("zip's method {} is not supported", entry.method));
  return bytes_in_memory(unpack(entry, *stored, name));
}

std::string ZipArchive::unpack(const Entry& entry, const ByteSource& stored, const std::string& name) const {
  z_stream stream = {};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> closer(&stream, inflateEnd);
  std::string result(static_cast<size_t>(entry.bytes), '\0');
  size_t written = 0;
  int status = Z_OK;
  for (int64_t at = 0; at < entry.stored_bytes && status == Z_OK;) {
    std::string input = read_bytes(stored, std::min<int64_t>(1 << 20, entry.stored_bytes - at), at);
    at += static_cast<int64_t>(input.size());
    stream.next_in = reinterpret_cast<Bytef*>(input.data());
    stream.avail_in = static_cast<uInt>(input.size());
    while (stream.avail_in > 0 && status == Z_OK) {
      const size_t room = std::min<size_t>(result.size() - written, size_t{1} << 30);
      stream.next_out = reinterpret_cast<Bytef*>(result.data() + written);
      stream.avail_out = static_cast<uInt>(room);
      status = inflate(&stream, Z_NO_FLUSH);
      written += room - stream.avail_out;
    }
  }
  const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(result.data()), result.size());
  if (status != Z_STREAM_END || written != result.size() || crc != entry.crc)
    throw damaged_entry(name, where_);
  return result;
}

int64_t ZipArchive::verify() const {
  int64_t total = 0;
  for (const auto& [name, entry] : entries_) {
    open(name)->read(nullptr, 0, 0);
    total += entry.bytes;
  }
  return total;
}

}  // namespace teratron
