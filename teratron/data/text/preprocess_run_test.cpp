// Progress reports, concurrent runs and killed runs of preprocess.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/file_lock.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/data/text/preprocess.h"
#include "teratron/testing/fixtures.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {
namespace {

using testing::TemporaryFolder;
using testing::write_bytes;

std::unique_ptr<Tokenizer> small_tokenizer() {
  return build_tokenizer({.type = "NullTokenizer", .vocab_size = 1000});
}

PreprocessOptions options_for(const TemporaryFolder& folder, int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) text += fmt::format("{{\"text\": \"{}\"}}\n", i % 1000);
  write_bytes(folder / "in.jsonl", text);
  return {.inputs = {folder / "in.jsonl"}, .output_prefix = folder / "out"};
}

std::vector<std::string> names_in(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(PreprocessRun, TheLastProgressIsReportedOnce) {
  TemporaryFolder folder;
  for (const int lines : {0, 3, 1000, 2500}) {
    PreprocessOptions options = options_for(folder, lines);
    options.log_interval = 500;
    std::vector<int64_t> reported;
    options.progress = [&](const PreprocessProgress& progress) { reported.push_back(progress.documents); };
    const auto result = preprocess(options, *small_tokenizer());
    ASSERT_FALSE(reported.empty());
    EXPECT_EQ(reported.back(), lines);
    EXPECT_EQ(std::count(reported.begin(), reported.end(), lines), 1);
    EXPECT_GT(result.seconds, 0);
  }
}

TEST(PreprocessRun, ConcurrentRunsAreRefused) {
  TemporaryFolder folder;
  const PreprocessOptions options = options_for(folder, 3);
  {
    const auto lock = FileLock::try_acquire(folder / ".out_text_document.lock");
    ASSERT_TRUE(lock.has_value());
    EXPECT_FALSE(FileLock::try_acquire(folder / ".out_text_document.lock").has_value());
    try {
      preprocess(options, *small_tokenizer());
      FAIL();
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::config);
      EXPECT_NE(std::string(error.what()).find("another process"), std::string::npos) << error.what();
    }
  }
  preprocess(options, *small_tokenizer());
  EXPECT_EQ(names_in(folder),
            (std::vector<std::string>{"in.jsonl", "out_text_document.bin", "out_text_document.idx"}));
}

TEST(PreprocessRun, LeftoversOfAKilledRunAreRemoved) {
  TemporaryFolder folder;
  for (const int partitions : {1, 3}) {
    PreprocessOptions options = options_for(folder, 200000);
    options.partitions = partitions;
    options.log_interval = 1000;
    const pid_t child = fork();
    if (child == 0) {
      options.progress = [](const PreprocessProgress& progress) {
        if (progress.documents > 0) ::kill(::getpid(), SIGKILL);
      };
      preprocess(options, *small_tokenizer());
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    const auto left = names_in(folder);
    EXPECT_GT(left.size(), 1u);
    EXPECT_EQ(std::count(left.begin(), left.end(), "out_text_document.idx"), 0);
    write_bytes(folder / ".other.bin.0123.tmp", "another run's");
    preprocess(options, *small_tokenizer());
    IndexedDataset(folder / "out_text_document").verify();
    EXPECT_EQ(names_in(folder), (std::vector<std::string>{".other.bin.0123.tmp", "in.jsonl",
                                                          "out_text_document.bin", "out_text_document.idx"}));
    std::filesystem::remove(folder / "out_text_document.idx");
  }
}

}  // namespace
}  // namespace teratron
