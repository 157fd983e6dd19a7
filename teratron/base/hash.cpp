#include "teratron/base/hash.h"

#include <charconv>

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

XXH3_state_t* state_of(void* state) {
  return static_cast<XXH3_state_t*>(state);
}

}  // namespace

uint64_t hash_bytes(const void* data, size_t bytes) {
  return XXH3_64bits(data, bytes);
}

std::string hash_to_hex(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

std::optional<uint64_t> hash_from_hex(std::string_view hex) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
  if (error != std::errc{} || end != hex.data() + hex.size()) return std::nullopt;
  if (hash_to_hex(value) != hex) return std::nullopt;
  return value;
}

Hasher::Hasher() : state_(XXH3_createState()) {
  TERATRON_ASSERT(state_ != nullptr);
  reset();
}

Hasher::~Hasher() {
  XXH3_freeState(state_of(state_));
}

void Hasher::update(const void* data, size_t bytes) {
  XXH3_64bits_update(state_of(state_), data, bytes);
}

uint64_t Hasher::digest() const {
  return XXH3_64bits_digest(state_of(state_));
}

void Hasher::reset() {
  XXH3_64bits_reset(state_of(state_));
}

}  // namespace teratron
