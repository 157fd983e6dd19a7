// Splits text into words for byte-level BPE with hand-written scanners for the common patterns, which are
// faster than a regex engine. `emit(const char* begin, size_t bytes)` receives the words in order; they cover
// the text. The text must be valid UTF-8.
//
//   gpt2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   llama3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//           ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//   qwen2   llama3 with single digits
//   tiktoken_v1   qwen2 without the first alternative
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>

#include "teratron/tokenizer/bpe/ascii_block.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

enum class SplitPattern : uint8_t { gpt2, llama3, qwen2, tiktoken_v1 };

/// The pattern of a regex, if it is one of them.
std::optional<SplitPattern> known_pattern(std::string_view regex);

/// The regex of a pattern, as written in tokenizer.json.
std::string_view pattern_regex(SplitPattern pattern);

class PreTokenizer {
 public:
  PreTokenizer() : table_(unicode::characters()) {}

  template <class Emit>
  void split(SplitPattern pattern, std::string_view text, Emit&& emit) const {
    switch (pattern) {
      case SplitPattern::gpt2:
        return split_gpt2(text, emit);
      case SplitPattern::llama3:
        return split_llama3({.max_digits = 3, .contractions = true}, text, emit);
      case SplitPattern::qwen2:
        return split_llama3({.max_digits = 1, .contractions = true}, text, emit);
      case SplitPattern::tiktoken_v1:
        return split_llama3({.max_digits = 1, .contractions = false}, text, emit);
    }
  }

 private:
  enum Class : uint8_t { other, letter, number, space, multibyte };

  static constexpr std::array<uint8_t, 256> kByteClass = [] {
    std::array<uint8_t, 256> classes{};
    for (int c = 0; c < 256; ++c) {
      const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
      classes[c] = c >= 0x80              ? multibyte
                   : is_letter            ? letter
                   : c >= '0' && c <= '9' ? number
                   : is_space             ? space
                                          : other;
    }
    return classes;
  }();

  static uint8_t byte_class(const char* p) { return kByteClass[static_cast<uint8_t>(*p)]; }

  /// Class of the code point at p; advances p.
  uint8_t take(const char*& p) const {
    const uint8_t ascii = byte_class(p);
    if (ascii != multibyte) {
      ++p;
      return ascii;
    }
    const uint16_t flags = table_[unicode::next(p)];
    return flags & unicode::letter   ? letter
           : flags & unicode::number ? number
           : flags & unicode::space  ? space
                                     : other;
  }

  uint8_t peek(const char* p) const { return take(p); }

  /// End of the run of class `kind` at p.
  const char* run(const char* p, const char* end, uint8_t kind) const {
    if (kind == letter) p = skip_ascii_letters(p, end);
    while (p < end) {
      const uint8_t ascii = byte_class(p);
      if (ascii == kind) {
        ++p;
      } else if (ascii != multibyte) {
        break;
      } else {
        const char* after = p;
        if (take(after) != kind) break;
        p = after;
      }
    }
    return p;
  }

  /// Eight bytes at a time: a letter is a byte from 'a' to 'z' in lower case. Sums of the low seven bits
  /// carry into the top bit of each byte.
  static const char* skip_ascii_letters(const char* p, const char* end) {
    constexpr uint64_t kOnes = 0x0101010101010101u;
    constexpr uint64_t kTops = kOnes * 0x80;
    while (end - p >= 8) {
      uint64_t bytes = 0;
      std::memcpy(&bytes, p, 8);
      const uint64_t low = (bytes | kOnes * 0x20) & ~kTops;
      const uint64_t from_a = low + kOnes * (0x80 - 'a');
      const uint64_t above_z = low + kOnes * (0x80 - 'z' - 1);
      const uint64_t stops = ~(from_a & ~above_z & ~bytes) & kTops;
      if (stops != 0) return p + std::countr_zero(stops) / 8;
      p += 8;
    }
    return p;
  }

  /// Length of 's 't 're 've 'm 'll 'd at p (an apostrophe), or 0.
  static size_t contraction(const char* p, const char* end) {
    const ptrdiff_t left = end - p;
    if (left < 2) return 0;
    const char a = p[1];
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (left < 3) return 0;
    const char b = p[2];
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
  }

  /// With (?i:...). Long s (U+017F) folds to s.
  static size_t contraction_any_case(const char* p, const char* end) {
    char folded[3] = {'\'', 0, 0};
    for (int i = 1; i < 3 && p + i < end; ++i) folded[i] = p[i] >= 'A' && p[i] <= 'Z' ? p[i] + 32 : p[i];
    const size_t bytes = contraction(folded, folded + std::min<ptrdiff_t>(3, end - p));
    if (bytes > 0) return bytes;
    return end - p >= 3 && p[1] == '\xc5' && p[2] == '\xbf' ? 3 : 0;
  }

  /// End of \s+(?!\S)|\s+ for the run [p, after): all of it at the end of the text, else all but its last
  /// code point.
  static const char* whitespace_end(const char* p, const char* after, const char* end) {
    if (after == end) return after;
    const char* last = after;
    unicode::previous(p, last);
    return last > p ? last : after;
  }

  /// End of the word of the gpt2 pattern that starts at p.
  const char* gpt2_word(const char* p, const char* end) const {
    const char* const begin = p;
    if (*p == '\'') {
      if (const size_t bytes = contraction(p, end)) return p + bytes;
    }
    uint8_t kind = take(p);
    if (kind == space && *begin == ' ' && p < end) {
      const char* after = p;
      kind = take(after);
      if (kind != space) p = after;
    }
    p = run(p, end, kind);
    return kind == space ? whitespace_end(begin, p, end) : p;
  }

  /// Begins of gpt2 words in the 64 bytes at p, which begins one itself: one bit per byte, except the first.
  /// Only those that the block decides: up to the byte before its last (ASCII) byte.
  static uint64_t gpt2_begins(const char* p, const char* end) {
    const AsciiBlock block = AsciiBlock::load(p);
    const int known = block.wide == 0 ? AsciiBlock::kBytes : std::countr_zero(block.wide);
    const uint64_t decided =
        known < 3 ? 0 : (~uint64_t{0} >> (AsciiBlock::kBytes - known + 1)) & ~uint64_t{1};
    const uint64_t sign = ~(block.letter | block.number | block.whitespace);
    const uint64_t continues = (block.letter & block.letter << 1) | (block.number & block.number << 1) |
                               (sign & sign << 1) | block.space << 1;
    // The last character of a whitespace run belongs to the next word.
    const uint64_t in_run = block.whitespace << 1 & block.whitespace >> 1;
    uint64_t begins = ((~block.whitespace & ~continues) | (block.whitespace & ~in_run)) & decided;
    for (uint64_t rest = (begins | 1) & block.apostrophe; rest != 0; rest &= rest - 1) {
      const int at = std::countr_zero(rest);
      const auto bytes = static_cast<int>(contraction(p + at, end));
      if (bytes == 0) continue;
      const uint64_t up_to = (uint64_t{2} << at) - 1;
      // The next word begins at the end of the contraction; stop before it if that is undecided.
      if (at + bytes >= known - 1) return begins & up_to;
      begins = (begins & (up_to | ~uint64_t{0} << (at + bytes))) | uint64_t{1} << (at + bytes);
    }
    return begins;
  }

  template <class Emit>
  void split_gpt2(std::string_view text, Emit& emit) const {
    const char* p = text.data();
    const char* const end = p + text.size();
    while (p < end) {
      uint64_t begins = end - p >= AsciiBlock::kBytes ? gpt2_begins(p, end) : 0;
      const char* const block = p;
      for (; begins != 0; begins &= begins - 1) {
        const char* const next = block + std::countr_zero(begins);
        emit(p, static_cast<size_t>(next - p));
        p = next;
      }
      if (p > block) continue;
      p = gpt2_word(block, end);
      emit(block, static_cast<size_t>(p - block));
    }
  }

  /// Variants of the llama3 pattern.
  struct Llama3 {
    int max_digits;
    bool contractions;
  };

  /// End of the word of the llama3 pattern that starts at p.
  const char* llama3_word(Llama3 variant, const char* p, const char* end) const {
    const char* const begin = p;
    if (variant.contractions && *p == '\'') {
      if (const size_t bytes = contraction_any_case(p, end)) return p + bytes;
    }
    const uint8_t kind = take(p);
    if (kind == letter) return run(p, end, letter);
    if (kind == number) {
      for (int i = 1; i < variant.max_digits && p < end && peek(p) == number; ++i) take(p);
      return p;
    }
    const uint8_t following = p < end ? peek(p) : static_cast<uint8_t>(space);
    if (following == letter && *begin != '\r' && *begin != '\n') return run(p, end, letter);
    if (kind == other || (*begin == ' ' && following == other)) {
      p = run(p, end, other);
      while (p < end && (*p == '\r' || *p == '\n')) ++p;
      return p;
    }
    const char* const after = run(begin, end, space);
    for (const char* last = after; last > begin; --last) {
      if (last[-1] == '\r' || last[-1] == '\n') return last;
    }
    return whitespace_end(begin, after, end);
  }

  template <class Emit>
  void split_llama3(Llama3 variant, std::string_view text, Emit& emit) const {
    const char* p = text.data();
    const char* const end = p + text.size();
    while (p < end) {
      const char* const begin = p;
      p = llama3_word(variant, p, end);
      emit(begin, static_cast<size_t>(p - begin));
    }
  }

  const unicode::CharacterTable& table_;
};

}  // namespace teratron
