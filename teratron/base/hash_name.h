// Hash of a name that never changes across machines and releases: it keys random streams.
#pragma once

#include <cstdint>
#include <string_view>

namespace teratron {

/// FNV-1a, 64 bits.
constexpr uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

}  // namespace teratron
