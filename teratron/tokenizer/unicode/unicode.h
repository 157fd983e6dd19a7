// UTF-8 and the character classes of the reference tokenizers (generated tables: unicode_tables.inc).
// System libraries carry other Unicode versions, and one code point in another class changes token ids.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace teratron::unicode {

/// Bits of a code point. `hf_*`: Hugging Face tokenizers' BERT steps; `python_*`: the original BERT
/// tokenizer.
enum Flag : uint16_t {
  letter = 1 << 0,          // \p{L}
  number = 1 << 1,          // \p{N}
  space = 1 << 2,           // \s
  word = 1 << 3,            // \w, beside added tokens with single_word
  hf_drop = 1 << 4,         // removed by clean_text
  hf_punctuation = 1 << 5,  // stands alone
  hf_mark = 1 << 6,         // removed by strip_accents after NFD
  hf_white = 1 << 7,        // separates words
  python_control = 1 << 8,
  python_punctuation = 1 << 9,
  python_mark = 1 << 10,
  python_blank = 1 << 11,  // becomes ' '
  python_split = 1 << 12,  // separates words in str.split()
  python_cased = 1 << 13,  // Cased and not Case_Ignorable
  python_ignorable = 1 << 14,
};

/// Flags of every code point: two look-ups.
class CharacterTable {
 public:
  CharacterTable();
  uint16_t operator[](uint32_t code_point) const {
    return blocks_[block_of_[(code_point >> 8) & 0x1fff]][code_point & 0xff];
  }

 private:
  std::array<uint16_t, 0x2000> block_of_{};
  std::vector<std::array<uint16_t, 256>> blocks_;
};

/// Built once, at first use.
const CharacterTable& characters();

/// The code point at `p`, which is moved behind it. The text must be valid UTF-8.
inline uint32_t next(const char*& p) {
  const auto byte = [&](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(p[i])); };
  const uint32_t first = byte(0);
  uint32_t code = first;
  if (first < 0x80) {
    p += 1;
  } else if (first < 0xe0) {
    code = (first & 0x1f) << 6 | (byte(1) & 0x3f);
    p += 2;
  } else if (first < 0xf0) {
    code = (first & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    p += 3;
  } else {
    code = (first & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
    p += 4;
  }
  return code;
}

/// Bytes of the sequence that its first byte announces; 1 for a byte that begins none.
inline size_t sequence_bytes(char first) {
  const auto byte = static_cast<uint8_t>(first);
  return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// The code point that ends at `p`, which is moved before it; `begin` < `p`. The text must be valid UTF-8.
uint32_t previous(const char* begin, const char*& p);

void append(uint32_t code_point, std::string& out);

/// True for well-formed UTF-8 (no surrogates, nothing overlong).
bool is_valid(std::string_view text);

/// Bytes of the well-formed sequence that `text` (not empty) begins with; 0 when it begins with none.
size_t well_formed_bytes(std::string_view text);

/// Each maximal ill-formed part becomes one U+FFFD, as in Python's errors="replace".
std::string replace_invalid(std::string_view text);

/// Lower case of one code point (no context), appended.
void append_lower(uint32_t code_point, std::string& out);

/// Lower case, each code point by itself.
std::string lower(std::string_view text);
/// str.lower() of Python: Unicode version of the reference, and a final sigma becomes the final form.
std::string python_lower(std::string_view text);

/// Canonical decomposition (NFD) and composition (NFC) as Hugging Face tokenizers computes them.
std::string nfd(std::string_view text);
std::string nfc(std::string_view text);
/// NFD of Python's unicodedata.
std::string python_nfd(std::string_view text);

/// A code point of rewritten text, and how many characters more than those it stands for: 0 for one in the place of one,
/// 1 for one that is inserted, -n for one in the place of n + 1.
struct Change {
  uint32_t code;
  int32_t characters;
};

/// One of the functions above, and the same told change by change.
struct Rewriting {
  std::string (*text)(std::string_view);
  std::vector<Change> (*changes)(std::string_view);
};
extern const Rewriting kLower, kPythonLower, kNfd, kNfc, kPythonNfd;

}  // namespace teratron::unicode
