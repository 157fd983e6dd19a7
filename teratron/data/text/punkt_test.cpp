#include "teratron/data/text/punkt.h"

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

using nlohmann::json;
using testing::fixture;
using testing::TemporaryFolder;

void expect_sentences(SentenceWhitespace whitespace, const std::string& expected_file) {
  const PunktSplitter splitter(fixture("preprocess/punkt_tab").string(), whitespace);
  const auto inputs = testing::read_json_lines(fixture("preprocess/punkt.jsonl"));
  const auto expected = testing::read_json_lines(fixture("preprocess/" + expected_file));
  ASSERT_EQ(inputs.size(), expected.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(json(splitter.split(inputs[i]["text"].get<std::string>())), expected[i]["text"]) << i;
  }
}

TEST(Punkt, SentencesMatchMegatron) {
  expect_sentences(SentenceWhitespace::drop, "punkt_ss.jsonl");
}

TEST(Punkt, KeepNewlinesMatchesMegatron) {
  expect_sentences(SentenceWhitespace::keep, "punkt-newlines_ss.jsonl");
}

TEST(Punkt, EnglishWithoutAModel) {
  const PunktSplitter splitter = PunktSplitter::english(SentenceWhitespace::drop);
  const auto expect = [&](const std::string& text, const std::vector<std::string>& sentences) {
    EXPECT_EQ(splitter.split(text), sentences) << text;
  };
  expect("Dr. Smith met J. R. Jones at 5 p.m. in the U.S. Senate. He left.",
         {"Dr. Smith met J. R. Jones at 5 p.m. in the U.S. Senate.", "He left."});
  expect("We met at 5 p.m. The rest is known, e.g. from letters (see fig. 3). Why? \"Because!\" she said.",
         {"We met at 5 p.m.", "The rest is known, e.g. from letters (see fig. 3).", "Why?", "\"Because!\"",
          "she said."});
  expect("It costs 3.50 or so. Acme Inc. sells it... and more.",
         {"It costs 3.50 or so.", "Acme Inc. sells it... and more."});
}

TEST(Punkt, QuotesThatAreNotAscii) {
  const PunktSplitter splitter = PunktSplitter::english(SentenceWhitespace::drop);
  const std::vector<std::string> expected = {"“Why?”", "‘So.’", "«Oui.»", "End.”"};
  EXPECT_EQ(splitter.split("“Why?”\n‘So.’ «Oui.» End.”"), expected);
}

TEST(Punkt, DegenerateTexts) {
  const PunktSplitter splitter(fixture("preprocess/punkt_tab").string(), SentenceWhitespace::drop);
  for (const std::string text :
       {"", " ", "\n", ".", "...", "a.", "?!?!", "é. ß", "(a.) b.\" c", ". . . . a"}) {
    std::string joined;
    for (const std::string& sentence : splitter.split(text)) {
      EXPECT_FALSE(sentence.empty());
      joined += sentence;
    }
    EXPECT_LE(joined.size(), text.size());
  }
}

TEST(Punkt, InvalidModels) {
  TemporaryFolder folder;
  EXPECT_THROW(PunktSplitter(folder.path().string(), SentenceWhitespace::drop), UserError);
  for (const std::string name : {"abbrev_types.txt", "sent_starters.txt", "collocations.tab"}) {
    testing::write_bytes(folder / name, "");
  }
  for (const std::string content : {"word", "word\tx", "word\t"}) {
    testing::write_bytes(folder / "ortho_context.tab", content + "\n");
    EXPECT_THROW(PunktSplitter(folder.path().string(), SentenceWhitespace::drop), UserError);
  }
  testing::write_bytes(folder / "ortho_context.tab", "word\t8\n");
  EXPECT_NO_THROW(PunktSplitter(folder.path().string(), SentenceWhitespace::drop));
}

}  // namespace
}  // namespace teratron
