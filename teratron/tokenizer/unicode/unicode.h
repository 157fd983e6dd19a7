// UTF-8 and the character classes of the reference tokenizers (generated tables: unicode_tables.inc). System
// libraries have other Unicode versions, and a single code point in another class changes token ids.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace teratron::unicode {

/// Flags of a code point. hf_*: BERT in Hugging Face tokenizers; python_*: the original BERT tokenizer.
enum Flag : uint16_t {
  letter = 1 << 0,          // \p{L}
  number = 1 << 1,          // \p{N}
  space = 1 << 2,           // \s
  word = 1 << 3,            // \w, for added tokens with single_word
  hf_drop = 1 << 4,         // removed by clean_text
  hf_punctuation = 1 << 5,  // a word by itself
  hf_mark = 1 << 6,         // removed by strip_accents after NFD
  hf_whitespace = 1 << 7,   // separates words
  python_control = 1 << 8,
  python_punctuation = 1 << 9,
  python_mark = 1 << 10,
  python_space = 1 << 11,  // becomes ' '
  python_split = 1 << 12,  // separates words in str.split()
  python_cased = 1 << 13,  // Cased and not Case_Ignorable
  python_ignorable = 1 << 14,
};

/// Flags of all code points, by two lookups.
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

/// Built on first use.
const CharacterTable& characters();

/// The code point at `p`; advances p. The text must be valid UTF-8.
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

/// Length of a sequence from its first byte; 1 for a continuation byte.
inline size_t sequence_bytes(char first) {
  const auto byte = static_cast<uint8_t>(first);
  return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// The code point before `p`; moves p back. `begin` < `p`. The text must be valid UTF-8.
uint32_t previous(const char* begin, const char*& p);

void append(uint32_t code_point, std::string& out);

/// Well-formed UTF-8: no surrogates, no overlong sequences.
bool is_valid(std::string_view text);

/// Length of the well-formed sequence at the start of `text` (not empty); 0 if there is none.
size_t well_formed_bytes(std::string_view text);

/// Bytes at the end of `text` that are the beginning of a well-formed sequence, and not all of it.
size_t truncated_bytes(std::string_view text);

/// Replaces each maximal ill-formed part by U+FFFD, like Python's errors="replace".
std::string replace_invalid(std::string_view text);

/// Appends the lower case of a code point, without context.
void append_lower(uint32_t code_point, std::string& out);

/// Lower case without context.
std::string lower(std::string_view text);
/// Python's str.lower() in the Unicode version of the reference, with the final form of sigma.
std::string python_lower(std::string_view text);

/// NFD and NFC as in Hugging Face tokenizers.
std::string nfd(std::string_view text);
std::string nfc(std::string_view text);
/// NFD as in Python's unicodedata.
std::string python_nfd(std::string_view text);

/// A code point of normalized text. `characters`: 0 if it replaces one, 1 if inserted, -n if it replaces n +
/// 1; as in Hugging Face's NormalizedString::transform.
struct Change {
  uint32_t code;
  int32_t characters;
};

/// One of the functions above, and the same as a list of changes.
struct Normalization {
  std::string (*text)(std::string_view);
  std::vector<Change> (*changes)(std::string_view);
};
extern const Normalization kLower, kPythonLower, kNfd, kNfc, kPythonNfd;

}  // namespace teratron::unicode
