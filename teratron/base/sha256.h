// SHA-256 and HMAC-SHA256 of OpenSSL's libcrypto, to authenticate short messages between ranks. Checkpoints
// use the faster base/hash.h.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace teratron {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest sha256(std::string_view message);
Sha256Digest hmac_sha256(std::string_view key, std::string_view message);
/// In a time that does not depend on where they differ.
bool equal_digests(const Sha256Digest& one, const Sha256Digest& other);

}  // namespace teratron
