#include "teratron/base/text_lines.h"

#include <sstream>

#include <gtest/gtest.h>

#include "teratron/base/strings.h"

namespace teratron {
namespace {

TEST(TextLines, NoBufferHasNoLines) {
  std::istream nothing(nullptr);
  std::string line = "before";
  EXPECT_FALSE(next_line(nothing, line, "nothing"));
  EXPECT_EQ(line, "");
}

TEST(TextLines, AreThoseOfGetline) {
  for (const std::string text : {"", "a", "a\n", "a\n\nb", "\n", "\n\n", "a\r\nb\n"}) {
    std::istringstream ours(text), reference(text);
    std::string line, expected;
    bool more = true;
    while (more) {
      more = static_cast<bool>(std::getline(reference, expected));
      EXPECT_EQ(next_line(ours, line, "f"), more) << text;
      EXPECT_EQ(ours.eof(), reference.eof()) << text;
      if (more) {
        EXPECT_EQ(line, expected) << text;
      }
    }
  }
}

TEST(TextLines, AnEndlessLineIsRejectedWhileItIsRead) {
  std::ifstream endless("/dev/zero");
  std::string line;
  try {
    next_line(endless, line, "zeros", 1000);
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("zeros: a line is longer than 1000 bytes"), std::string::npos);
  }
  EXPECT_THROW(read_rest(endless, "zeros", 1000), UserError);
  std::istringstream short_text("a\nb");
  EXPECT_EQ(read_rest(short_text, "f"), "a\nb");
  EXPECT_THROW(open_text("/dev/zero", ExitCode::data), UserError);
}

// ECMA-48: C0, DEL and C1 (U+0080 to U+009F) are what a terminal obeys.
TEST(TerminalText, EscapesControlCharacters) {
  EXPECT_EQ(terminal_text("a\x1b[2Jb\tc\nd"), "a\\x1b[2Jb\tc\nd");
  EXPECT_EQ(terminal_text("\r\b\a\x7f"), "\\x0d\\x08\\x07\\x7f");
  EXPECT_EQ(terminal_text("\xc2\x9b"
                          "31m"),
            "\\xc2\\x9b31m");
  EXPECT_EQ(terminal_text("\xc2\xa0\xc3\xa9\xe2\x82\xac\n"), "\xc2\xa0\xc3\xa9\xe2\x82\xac\n");
  EXPECT_EQ(terminal_text(std::string(1000, 'x') + "\n\n"), std::string(1000, 'x') + "\n\n");
  EXPECT_EQ(terminal_text(""), "");
}

TEST(TerminalText, LeavesFilesAndPipesAlone) {
  testing::internal::CaptureStdout();  // stdout is a file now
  EXPECT_EQ(stdout_text("\x1b[2J"), "\x1b[2J");
  testing::internal::GetCapturedStdout();
}

}  // namespace
}  // namespace teratron
