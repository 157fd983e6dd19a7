// XXH3 64-bit: fast enough (tens of GB/s) to verify every byte read. Detects corruption, not forgery.
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

/// 16 lower-case hexadecimal digits and back; nullopt for anything else.
std::string hash_to_hex(uint64_t hash);
std::optional<uint64_t> hash_from_hex(std::string_view hex);

/// Streaming version of hash_bytes().
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void update(const void* data, size_t bytes);
  /// Hash of all bytes since construction or the last reset().
  uint64_t digest() const;
  void reset();

 private:
  void* state_;  // XXH3_state_t; keeps xxhash.h out of headers
};

}  // namespace teratron
