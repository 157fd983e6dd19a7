// Samples beside those that Megatron-LM's own code built, with its tokenizer of words.
#include "teratron/tasks/finetune/pair_samples.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/tasks/testing/word_tokenizer.h"
#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

using testing::fixture;
using testing::read_json;

class PairSamplesTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    testing::write_bytes(path, text);
    return path.string();
  }
  std::vector<Problem> problems(const std::function<PairSamples()>& read) {
    try {
      read();
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::data);
      return error.problems();
    }
    return {};
  }
  void expect_row(const PairSamples& samples, size_t pair, const nlohmann::json& expected, size_t row) {
    const auto part = [&](const char* name) {
      const nlohmann::json& value = expected.at(name);
      return (value[0].is_array() ? value[row] : value).get<std::vector<int32_t>>();
    };
    const std::vector<int32_t> text = part("text");
    const PairRow actual =
        pair_row(samples, samples.pairs.at(pair), tokenizer_.special(), static_cast<int64_t>(text.size()));
    std::vector<int32_t> tokens = actual.tokens, types(text.size()), mask(text.size());
    for (auto i = static_cast<size_t>(actual.types_begin); i < tokens.size(); ++i) types[i] = 1;
    std::fill_n(mask.begin(), tokens.size(), 1);
    tokens.resize(text.size());
    EXPECT_EQ(tokens, text);
    EXPECT_EQ(types, part("types"));
    EXPECT_EQ(mask, part("padding_mask"));
  }
  void expect_samples(const PairSamples& actual, const nlohmann::json& expected) {
    ASSERT_EQ(actual.samples.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(actual.samples[i].id, expected[i].at("uid").get<int64_t>());
      EXPECT_EQ(actual.samples[i].label, expected[i].at("label").get<int64_t>());
      for (int64_t row = 0; row < actual.pairs_per_sample; ++row)
        expect_row(actual, actual.samples[i].first_pair + row, expected[i], row);
    }
  }

  testing::TemporaryFolder temporary_;
  std::filesystem::path folder_ = temporary_.path();
  nlohmann::json file_ = read_json(fixture("models/tasks.json"));
  testing::WordTokenizer tokenizer_{file_};
  std::vector<std::string> log_;
  PairReader reader_{.tokenizer = tokenizer_,
                     .log = [this](const std::string& line) { log_.push_back(line); }};
};

TEST_F(PairSamplesTest, RaceIsMegatrons) {
  const nlohmann::json& race = file_.at("race");
  write("RACE/dev/middle/1.txt", race.at("file"));
  const PairSamples samples =
      read_race((folder_ / "RACE/dev/middle/").string(), reader_, race.at("max_qa_length"));
  EXPECT_EQ(samples.name, "dev-middle");
  EXPECT_EQ(samples.pairs_per_sample, 4);
  expect_samples(samples, race.at("samples"));
  EXPECT_EQ(log_.at(0), "   > working on " + (folder_ / "RACE/dev/middle/").string());
  EXPECT_TRUE(log_.at(1).starts_with("    > processed 2 document, 4 questions, and 4 samples in "));
}

TEST_F(PairSamplesTest, MnliAndQqpAreMegatrons) {
  for (const nlohmann::json& glue : file_.at("glue")) {
    log_.clear();
    const std::string task = glue.at("task");
    const std::string path = write(task + "/dev_matched.tsv", glue.at("file"));
    const PairSamples samples = task == "MNLI" ? read_mnli(path, reader_) : read_qqp(path, reader_);
    EXPECT_EQ(samples.name, "dev-matched");
    expect_samples(samples, glue.at("samples"));
    EXPECT_EQ(log_.front(), " > Processing " + path + " ...");
    EXPECT_EQ(log_.back(), " >> processed " + std::to_string(samples.samples.size()) + " samples.");
  }
  // QQP is the last one.
  EXPECT_EQ(log_.at(1), "    reading id, question1, question2, and is_duplicate columns ...");
  EXPECT_EQ(log_.at(2), "***WARNING*** zero length a, skipping: ['6', '3', '4', '', 'mat sat two', '0']");
  EXPECT_EQ(log_.at(3), "***WARNING*** index error, skipping: ['7', '3', '4']");
}

TEST_F(PairSamplesTest, SeveralFilesAreOneDataset) {
  const nlohmann::json& glue = file_.at("glue")[0];
  const PairSamples one = read_mnli(write("MNLI/a.tsv", glue.at("file")), reader_);
  PairSamples two = one;
  two.add(one);
  nlohmann::json expected = glue.at("samples");
  for (const nlohmann::json& sample : glue.at("samples")) expected.push_back(sample);
  expect_samples(two, expected);
}

TEST_F(PairSamplesTest, LinesOfMnliWithErrorsAreNamed) {
  const std::string row = "\tp\tq\tr\ts\tt\tu\tv\t", header = "index" + row + "a\tb\tl1\tgold\n";
  const std::string path =
      write("MNLI/wrong.tsv", header + "0" + row + "the cat\tran\tx\tneutral\n" + "1" + row +
                                  "the cat\tran\tx\tmaybe\n" + "2" + row + "the cat\n" + "x" + row +
                                  "the cat\tran\tx\tneutral\n" + "3" + row + " \tran\tx\tneutral\n");
  const std::vector<Problem> found = problems([&] { return read_mnli(path, reader_); });
  ASSERT_EQ(found.size(), 4U);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].where, path + ":" + std::to_string(i + 3));
  EXPECT_NE(found[0].what.find("'maybe' is not a label of MNLI"), std::string::npos);
  EXPECT_NE(found[0].fix.find("contradiction, entailment, neutral"), std::string::npos);
}

TEST_F(PairSamplesTest, DataOfAnotherTaskAreRefused) {
  const std::string mnli = write("MNLI/a.tsv", file_.at("glue")[0].at("file")),
                    qqp = write("QQP/a.tsv", file_.at("glue")[2].at("file"));
  EXPECT_EQ(problems([&] { return read_mnli(qqp, reader_); }).at(0).where, qqp + ":1");
  EXPECT_EQ(problems([&] { return read_qqp(mnli, reader_); }).at(0).where, mnli + ":1");
  write("RACE/a.txt", "{\"text\": \"the cat\"}\n");
  EXPECT_EQ(problems([&] { return read_race((folder_ / "RACE").string(), reader_); }).at(0).what,
            "the line has no article");
  EXPECT_EQ(problems([&] { return read_race((folder_ / "MNLI").string(), reader_); }).size(), 1U);
  EXPECT_EQ(problems([&] { return read_mnli(write("MNLI/empty.tsv", ""), reader_); }).size(), 1U);
}

TEST_F(PairSamplesTest, LinesOfRaceWithErrorsAreNamed) {
  const std::string path = write(
      "RACE/x.txt",
      R"({"article": "the cat", "questions": ["what"], "options": [["a", "a", "a", "a"]], "answers": ["E"]}
{"article": "the cat", "questions": ["what"], "options": [["a", "a", "a"]], "answers": ["A"]}
{"article": "the cat", "questions": ["what"], "options": [], "answers": ["A"]}
{"article": "the cat", "questions": ["what"], "options": [["a", "a", "a", "a"]]}
{"article": 3, "questions": [], "options": [], "answers": []}
{"article"
)");
  const std::vector<Problem> found =
      problems([&] { return read_race((folder_ / "RACE").string(), reader_); });
  ASSERT_EQ(found.size(), 6U);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].where.starts_with(path + ":" + std::to_string(i + 1))) << found[i].where;
  }
}

}  // namespace
}  // namespace teratron
