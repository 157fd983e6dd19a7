#include "teratron/base/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

Sha256Digest sha256(std::string_view message) {
  Sha256Digest digest{};
  TERATRON_ASSERT(SHA256(bytes_of(message), message.size(), digest.data()));
  return digest;
}

Sha256Digest hmac_sha256(std::string_view key, std::string_view message) {
  Sha256Digest digest{};
  TERATRON_ASSERT(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(message),
                       message.size(), digest.data(), /*md_len=*/nullptr));
  return digest;
}

bool equal_digests(const Sha256Digest& one, const Sha256Digest& other) {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace teratron
