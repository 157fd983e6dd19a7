#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/cli/commands.h"
#include "teratron/data/indexed/index_array.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

class DataCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("data-commands-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    std::ofstream(folder_ / "in.jsonl") << "{\"text\": \"1 2 3\"}\n{\"text\": \"\"}\n{\"text\": \"4 5\"}\n";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  Arguments preprocess_arguments(const std::string& prefix) const {
    return {"--input",
            path("in.jsonl"),
            "--output-prefix",
            path(prefix),
            "--tokenizer-type",
            "NullTokenizer",
            "--vocab-size",
            "9",
            "--append-eod",
            "--workers",
            "2",
            "--dataset-impl",
            "mmap",
            "--json-key",
            "text"};
  }
  void preprocess(const std::string& prefix) { output(preprocess_command, preprocess_arguments(prefix)); }
  static std::string output(int (*command)(std::span<const std::string>), const Arguments& args) {
    ::testing::internal::CaptureStdout();
    const int code = command(args);
    EXPECT_EQ(code, 0);
    return ::testing::internal::GetCapturedStdout();
  }
  static ExitCode failure(int (*command)(std::span<const std::string>), const Arguments& args) {
    try {
      command(args);
    } catch (const UserError& error) {
      return error.exit_code();
    }
    return ExitCode::ok;
  }

  fs::path folder_;
};

TEST_F(DataCommands, PreprocessInspectVerifySample) {
  preprocess("a");
  const std::string prefix = path("a_text_document");
  const std::string inspected = output(data_command, {"inspect", prefix});
  EXPECT_NE(inspected.find("documents         3"), std::string::npos) << inspected;
  EXPECT_NE(inspected.find("tokens            7"), std::string::npos) << inspected;
  EXPECT_NE(output(data_command, {"verify", prefix + ".bin", "--vocab-size", "10"}).find("sound"),
            std::string::npos);
  EXPECT_EQ(failure(data_command, {"verify", prefix, "--vocab-size", "5"}), ExitCode::data);
  EXPECT_NE(output(data_command, {"sample", prefix, "--document", "2"}).find("4 5 9"), std::string::npos);
  EXPECT_EQ(failure(data_command, {"sample", prefix, "--document", "3"}), ExitCode::config);
  EXPECT_EQ(failure(data_command, {"inspect", path("none")}), ExitCode::data);
}

TEST_F(DataCommands, SentencesBySplitter) {
  std::ofstream(folder_ / "in.jsonl") << "{\"text\": \"1 2. 3? 4\"}\n";
  auto args = preprocess_arguments("s");
  args.insert(args.end(), {"--split-sentences", "--max-bad", "1"});
  // NullTokenizer cannot parse the punctuation: a bad line, with or without a splitter.
  output(preprocess_command, args);
  args.insert(args.end(),
              {"--punkt-model", std::string(TERATRON_SOURCE_DIR) + "/tests/fixtures/preprocess/punkt_tab"});
  output(preprocess_command, args);
  std::ofstream(folder_ / "in.jsonl") << "{\"text\": \"1 2\"}\n{\"text\": [\"3\", \"4\"]}\n";
  output(preprocess_command, args);
  EXPECT_NE(output(data_command, {"inspect", path("s_text_sentence")}).find("sequences         3"),
            std::string::npos);
}

TEST_F(DataCommands, InspectShowsLengthsAndADocument) {
  preprocess("a");
  const std::string prefix = path("a_text_document");
  const std::string ids = output(data_command, {"inspect", prefix});
  EXPECT_NE(ids.find("    2-3             1 ##"), std::string::npos) << ids;
  EXPECT_NE(ids.find("    4-7             1 ##"), std::string::npos) << ids;
  EXPECT_NE(ids.find("document 0 sequence 0: 1 2 3 9"), std::string::npos) << ids;
  std::ofstream(folder_ / "vocab.json")
      << R"({"d": 0, "a": 1, "b": 2, "c": 3, "e": 4, "f": 5, "g": 6, "h": 7, "i": 8, "<|endoftext|>": 9})";
  std::ofstream(folder_ / "merges.txt") << "";
  const std::string text =
      output(data_command, {"inspect", prefix, "--tokenizer-type", "GPT2BPETokenizer", "--vocab-file",
                            path("vocab.json"), "--merge-file", path("merges.txt")});
  EXPECT_NE(text.find("document 0 sequence 0: abc<|endoftext|>"), std::string::npos) << text;
}

TEST_F(DataCommands, LegacyFormat) {
  auto args = preprocess_arguments("old");
  for (const char* const implementation : {"lazy", "cached"}) {
    *(std::find(args.begin(), args.end(), "--dataset-impl") + 1) = implementation;
    output(preprocess_command, args);
    const std::string text = output(data_command, {"inspect", path("old_text_document")});
    EXPECT_NE(text.find("cached, lazy"), std::string::npos) << text;
    EXPECT_NE(text.find("element type      I32"), std::string::npos) << text;
    EXPECT_NE(output(data_command, {"verify", path("old_text_document")}).find("sound; 7 tokens"),
              std::string::npos);
  }
}

TEST_F(DataCommands, MappingOfSentences) {
  const std::string fixtures = std::string(TERATRON_SOURCE_DIR) + "/tests/fixtures/";
  const auto mapping = [&](Arguments more) {
    Arguments args = {"mapping",      fixtures + "preprocess/bert-sentences.core_v0.7.0_text_sentence",
                      "--split",      "1",
                      "--output-dir", path("mapping")};
    args.insert(args.end(), more.begin(), more.end());
    return output(data_command, args);
  };
  const std::string text = mapping({"--seq-length", "64"});
  EXPECT_NE(text.find("116 samples"), std::string::npos) << text;
  EXPECT_NE(text.find("(170,172,61) (31,33,61) (101,103,61)"), std::string::npos) << text;
  const IndexArray array = IndexArray::open(path("mapping/sample_mapping.npy"));
  EXPECT_EQ(array.rows(), 116);
  EXPECT_EQ(array.at(1, 2), 61);
  EXPECT_NE(mapping({"--seq-length", "64", "--bert-no-binary-head"}).find("120 samples"), std::string::npos);
  EXPECT_NE(mapping({"--seq-length", "32", "--num-samples", "150", "--short-seq-prob", "0.5", "--seed", "7"})
                .find("153 samples"),
            std::string::npos);
  EXPECT_EQ(
      failure(data_command, {"mapping", fixtures + "corpora/six", "--split", "1", "--seq-length", "64"}),
      ExitCode::data);
}

TEST_F(DataCommands, MappingsOfABlend) {
  const std::string prefix = std::string(TERATRON_SOURCE_DIR) +
                             "/tests/fixtures/preprocess/bert-sentences.core_v0.7.0_text_sentence";
  const auto mapping = [&](Arguments more) {
    Arguments args = {"mapping", "--split",      "1",           "--seq-length",
                      "64",      "--output-dir", path("blend"), "--data-path"};
    args.insert(args.end(), more.begin(), more.end());
    return output(data_command, args);
  };
  const auto array = [&](const char* name) { return IndexArray::open(path(std::string("blend/") + name)); };
  // One epoch of each, all of them once.
  EXPECT_NE(mapping({prefix, prefix}).find("blend of 232 samples"), std::string::npos);
  EXPECT_EQ(array("sample_mapping.0.npy").rows(), 116);
  EXPECT_EQ(array("sample_mapping.1.npy").rows(), 116);
  EXPECT_EQ(array("dataset_index.npy").rows(), 232);
  // 150 and 50 samples with their surplus; every fourth is the second's.
  mapping({"3", prefix, "1", prefix, "--num-samples", "200"});
  EXPECT_EQ(array("dataset_index.npy").rows(), 200);
  std::array<int64_t, 2> counts{};
  for (int64_t i = 0; i < 200; ++i) {
    const int64_t dataset = array("dataset_index.npy").at(i);
    EXPECT_EQ(array("dataset_sample_index.npy").at(i), counts.at(static_cast<size_t>(dataset))++);
  }
  EXPECT_EQ(counts, (std::array<int64_t, 2>{150, 50}));
  EXPECT_GE(array("sample_mapping.0.npy").rows(), 151);
  EXPECT_EQ(failure(data_command, {"mapping", "--seq-length", "64", "--data-path", "3", prefix, "1", prefix}),
            ExitCode::config);
}

TEST_F(DataCommands, Indices) {
  const std::string six = std::string(TERATRON_SOURCE_DIR) + "/tests/fixtures/corpora/six";
  const Arguments args = {
      "indices",      "--data-path",  six, "--seq-length", "4", "--split", "1", "--num-samples", "10",
      "--output-dir", path("indices")};
  const std::string text = output(data_command, args);
  EXPECT_NE(text.find("document_index   12 <i4: 2 1 5 0 4 3 0 4 3 2 ..."), std::string::npos) << text;
  EXPECT_NE(text.find("(0,0) (0,4) (1,1)"), std::string::npos) << text;
  const IndexArray shuffle = IndexArray::open(path("indices/shuffle_index.npy"));
  const std::vector<int64_t> expected = {1, 0, 3, 2, 5, 4, 6, 10, 12, 9, 8, 13, 11, 14, 7};
  ASSERT_EQ(shuffle.rows(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(shuffle.at(static_cast<int64_t>(i)), expected[i]) << i;
  EXPECT_EQ(IndexArray::open(path("indices/sample_index.npy")).columns(), 2);
  EXPECT_EQ(IndexArray::open(path("indices/document_index.npy")).rows(), 12);
  Arguments wrong = args;
  wrong.insert(wrong.end(), {"--split-part", "valid"});
  EXPECT_EQ(failure(data_command, wrong), ExitCode::data);
  wrong = args;
  wrong.insert(wrong.begin() + 3, six);
  EXPECT_EQ(failure(data_command, wrong), ExitCode::config);
}

TEST_F(DataCommands, MergeOfAFolder) {
  preprocess("a");
  preprocess("b");
  const std::string text = output(merge_command, {"--input", folder_.string(), "--output-prefix", path("c")});
  EXPECT_NE(text.find("2 datasets, 6 documents, 4 sequences, 14 tokens"), std::string::npos) << text;
  EXPECT_EQ(failure(merge_command,
                    {"--input", path("a_text_document"), "--output-prefix", path("a_text_document")}),
            ExitCode::config);
  fs::create_directories(folder_ / "empty");
  EXPECT_EQ(failure(merge_command, {"--input", path("empty"), "--output-prefix", path("d")}), ExitCode::data);
}

TEST_F(DataCommands, InvalidCommandLines) {
  EXPECT_EQ(failure(data_command, {"nonsense"}), ExitCode::config);
  EXPECT_EQ(failure(preprocess_command, {"--input", path("in.jsonl"), "--output-prefix", path("a")}),
            ExitCode::config);
  auto args = preprocess_arguments("a");
  *(std::find(args.begin(), args.end(), "--dataset-impl") + 1) = "other";
  EXPECT_EQ(failure(preprocess_command, args), ExitCode::config);
  std::ofstream(folder_ / "in.jsonl", std::ios::app) << "broken\n";
  EXPECT_EQ(failure(preprocess_command, preprocess_arguments("a")), ExitCode::data);
}

}  // namespace
}  // namespace teratron
