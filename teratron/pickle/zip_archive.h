// Zip files with stored or deflated entries, zip64 included. What unpacks to many times the file's size is
// refused.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "teratron/pickle/byte_source.h"

namespace teratron {

class ZipArchive {
 public:
  /// UserError(checkpoint) if the directory of the file is invalid; `where` names the file.
  ZipArchive(ByteSourcePtr source, std::string where);

  static bool is_zip(const ByteSource& source);

  struct Entry {
    uint16_t method = 0;
    uint32_t crc = 0;
    int64_t stored_bytes = 0;
    int64_t bytes = 0;
    int64_t header = 0;  // offset
  };
  /// By name; names that occur twice are refused.
  const std::map<std::string, Entry>& entries() const { return entries_; }
  /// The contents of an entry: in place if it is stored, else unpacked into memory. Their checksum is
  /// compared when they are unpacked or first read, unless it is 0, as torch.save has it if it computes none.
  ByteSourcePtr open(const std::string& name) const;
  /// Reads all entries and compares their checksums; returns their bytes.
  int64_t verify() const;

 private:
  void read_directory(const std::string& directory, uint64_t count);
  std::string unpack(const Entry& entry, const ByteSource& stored, const std::string& name) const;
  [[noreturn]] void fail(const std::string& what) const;

  ByteSourcePtr source_;
  std::string where_;
  std::map<std::string, Entry> entries_;
};

}  // namespace teratron
