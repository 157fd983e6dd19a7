#include "teratron/tokenizer/unicode/unicode.h"

#include <algorithm>

#include <simdjson.h>

#include "teratron/tokenizer/unicode/unicode_tables.h"

namespace teratron::unicode {
namespace {

constexpr uint32_t kReplacement = 0xfffd;

/// Length of the well-formed sequence at the start of `text`; if 0, `*skip` is the length of the ill-formed
/// part.
size_t well_formed(std::string_view text, size_t* skip) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = at(0);
  *skip = 1;
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
  if (first == 0xe0) low = 0xa0;
  if (first == 0xed) high = 0x9f;
  if (first == 0xf0) low = 0x90;
  if (first == 0xf4) high = 0x8f;
  for (size_t i = 1; i < length; ++i) {
    if (i >= text.size() || at(i) < low || at(i) > high) {
      *skip = i;
      return 0;
    }
    low = 0x80;
    high = 0xbf;
  }
  return length;
}

}  // namespace

CharacterTable::CharacterTable() {
  const std::span<const uint32_t> ranges = unicode_tables::flag_ranges;
  std::array<uint16_t, 256> block{};
  blocks_.push_back(block);
  size_t range = 0;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (range + 2 < ranges.size() && ranges[range + 2] == code) range += 2;
    block[code & 0xff] = static_cast<uint16_t>(ranges[range + 1]);
    if ((code & 0xff) != 0xff) continue;
    if (block != blocks_.back()) blocks_.push_back(block);
    block_of_[code >> 8] = static_cast<uint16_t>(blocks_.size() - 1);
  }
}

const CharacterTable& characters() {
  static const CharacterTable table;
  return table;
}

uint32_t previous(const char* begin, const char*& p) {
  do {
    --p;
  } while (p > begin && (static_cast<uint8_t>(*p) & 0xc0) == 0x80);
  const char* at = p;
  return next(at);
}

void append(uint32_t code, std::string& out) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

bool is_valid(std::string_view text) {
  return simdjson::validate_utf8(text.data(), text.size());
}

size_t well_formed_bytes(std::string_view text) {
  size_t skip = 0;
  return well_formed(text, &skip);
}

size_t truncated_bytes(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const std::string_view end = text.substr(text.size() - back);
    const auto first = static_cast<uint8_t>(end[0]);
    if ((first & 0xc0) == 0x80) continue;
    size_t valid = 0;
    return well_formed(end, &valid) == 0 && valid == back && first >= 0xc2 && first <= 0xf4 ? back : 0;
  }
  return 0;
}

std::string replace_invalid(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  while (!text.empty()) {
    size_t skip = 0;
    const size_t length = well_formed(text, &skip);
    if (length > 0) {
      out.append(text.substr(0, length));
      text.remove_prefix(length);
    } else {
      append(kReplacement, out);
      text.remove_prefix(skip);
    }
  }
  return out;
}

}  // namespace teratron::unicode
