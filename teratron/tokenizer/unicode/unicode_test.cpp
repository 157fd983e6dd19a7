#include "teratron/tokenizer/unicode/unicode.h"

#include <gtest/gtest.h>

namespace teratron::unicode {
namespace {

std::string utf8(std::initializer_list<uint32_t> codes) {
  std::string text;
  for (const uint32_t code : codes) append(code, text);
  return text;
}

TEST(Unicode, EncodesAndDecodesEveryCodePoint) {
  for (uint32_t code = 1; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    const std::string text = utf8({code});
    const char* p = text.data();
    ASSERT_EQ(next(p), code);
    ASSERT_EQ(p, text.data() + text.size());
    ASSERT_EQ(previous(text.data(), p), code);
    ASSERT_EQ(p, text.data());
  }
}

TEST(Unicode, HasTheClassesOfTheReference) {
  const CharacterTable& table = characters();
  EXPECT_TRUE(table['a'] & letter);
  EXPECT_TRUE(table[0x5b57] & letter);
  EXPECT_TRUE(table[0x2167] & number);  // Roman numeral eight
  EXPECT_TRUE(table[0x3000] & space);
  EXPECT_TRUE(table[0x85] & space);
  EXPECT_FALSE(table[0x180e] & space);
  EXPECT_FALSE(table[0x200b] & space);
  EXPECT_TRUE(table['_'] & word);
  EXPECT_TRUE(table[0xe000] & hf_drop);
  EXPECT_FALSE(table[0xe000] & python_control);
  EXPECT_TRUE(table['$'] & hf_punctuation);
  EXPECT_TRUE(table[0x301] & hf_mark);
  EXPECT_TRUE(table[0x2028] & python_split);
  EXPECT_FALSE(table[0x2028] & python_space);
}

TEST(Unicode, ReplacesInvalidUtf8LikePython) {
  const std::string bad = utf8({0xfffd});
  EXPECT_EQ(replace_invalid("a\xff"), "a" + bad);
  EXPECT_EQ(replace_invalid("\xe2\x82z"), bad + "z");           // cut short: one
  EXPECT_EQ(replace_invalid("\xed\xa0\x80"), bad + bad + bad);  // a surrogate: one for each byte
  EXPECT_EQ(replace_invalid("\xc0\xaf"), bad + bad);            // overlong
  EXPECT_EQ(replace_invalid("\xf0\x9f\x98"), bad);
  EXPECT_EQ(replace_invalid("\xf5\x80"), bad + bad);
  EXPECT_EQ(replace_invalid(utf8({0x1f642, 0x41})), utf8({0x1f642, 0x41}));
}

TEST(Unicode, NormalizesToNfcAndNfd) {
  EXPECT_EQ(nfd(utf8({0xe9})), utf8({'e', 0x301}));
  EXPECT_EQ(nfc(utf8({'e', 0x301})), utf8({0xe9}));
  // Marks are put in order, and a mark that is blocked by an equal one stays.
  EXPECT_EQ(nfd(utf8({'a', 0x301, 0x323})), utf8({'a', 0x323, 0x301}));
  EXPECT_EQ(nfc(utf8({'a', 0x301, 0x323})), utf8({0x1ea1, 0x301}));
  EXPECT_EQ(nfc(utf8({'a', 0x300, 0x301})), utf8({0xe0, 0x301}));
  EXPECT_EQ(nfc(utf8({0x1100, 0x1161, 0x11a8})), utf8({0xac01}));
  EXPECT_EQ(nfd(utf8({0xac01})), utf8({0x1100, 0x1161, 0x11a8}));
  EXPECT_EQ(nfc(utf8({0x212b})), utf8({0xc5}));         // angstrom sign
  EXPECT_EQ(nfc(utf8({0x958})), utf8({0x915, 0x93c}));  // excluded from composition
  EXPECT_EQ(nfc("plain"), "plain");
}

TEST(Unicode, LowersLikePython) {
  EXPECT_EQ(python_lower("ABC"), "abc");
  EXPECT_EQ(python_lower(utf8({0x130})), utf8({'i', 0x307}));
  EXPECT_EQ(python_lower(utf8({0x391, 0x3a3})), utf8({0x3b1, 0x3c2}));  // final
  EXPECT_EQ(python_lower(utf8({0x3a3})), utf8({0x3c3}));                // alone
  EXPECT_EQ(python_lower(utf8({0x391, 0x3a3, 0x391})), utf8({0x3b1, 0x3c3, 0x3b1}));
  EXPECT_EQ(python_lower(utf8({0x391, 0x3a3, '.'})), utf8({0x3b1, 0x3c2, '.'}));
  std::string lower;
  append_lower(0x3a3, lower);
  EXPECT_EQ(lower, utf8({0x3c3}));
}

}  // namespace
}  // namespace teratron::unicode
