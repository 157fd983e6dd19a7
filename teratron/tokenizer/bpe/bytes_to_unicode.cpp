#include "teratron/tokenizer/bpe/bytes_to_unicode.h"

#include <algorithm>
#include <numeric>

#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {
namespace {

constexpr bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

std::array<uint16_t, 256> make_table() {
  std::array<uint16_t, 256> table{};
  uint16_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    table[byte] = is_printable(byte) ? static_cast<uint16_t>(byte) : next++;
  }
  return table;
}

constexpr size_t kCodePoints = 256 + 68;  // 68 bytes are not printable

std::array<int16_t, kCodePoints> make_inverse() {
  std::array<int16_t, kCodePoints> inverse{};
  inverse.fill(-1);
  for (int byte = 0; byte < 256; ++byte) inverse[bytes_to_unicode()[byte]] = static_cast<int16_t>(byte);
  return inverse;
}

}  // namespace

const std::array<uint16_t, 256>& bytes_to_unicode() {
  static const std::array<uint16_t, 256> table = make_table();
  return table;
}

std::array<uint8_t, 256> bytes_in_unicode_order() {
  std::array<uint8_t, 256> bytes{};
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  std::sort(bytes.begin(), bytes.end(),
            [](uint8_t a, uint8_t b) { return bytes_to_unicode()[a] < bytes_to_unicode()[b]; });
  return bytes;
}

std::string byte_encode(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) unicode::append(bytes_to_unicode()[static_cast<uint8_t>(byte)], out);
  return out;
}

std::optional<std::string> byte_decode(std::string_view text) {
  static const std::array<int16_t, kCodePoints> inverse = make_inverse();
  std::string out;
  out.reserve(text.size());
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const uint32_t code = unicode::next(p);
    if (code >= kCodePoints || inverse[code] < 0) return std::nullopt;
    out.push_back(static_cast<char>(inverse[code]));
  }
  return out;
}

}  // namespace teratron
