// XXH3 64-bit: fast enough (tens of GB/s) to check every byte that is read. It guards against damage, not
// against forgery.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace teratron {

uint64_t hash_bytes(const void* data, size_t bytes);
inline uint64_t hash_text(std::string_view text) {
  return hash_bytes(text.data(), text.size());
}

/// 16 hexadecimal digits and back; nothing unless exactly 16 lower-case digits are given.
std::string hash_to_hex(uint64_t hash);
std::optional<uint64_t> hash_from_hex(std::string_view hex);

/// The same hash over bytes that arrive in pieces.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void update(const void* data, size_t bytes);
  /// Hash of everything since the start or the last reset().
  uint64_t digest() const;
  void reset();

 private:
  void* state_;  // XXH3_state_t: xxhash.h stays out of headers
};

}  // namespace teratron
