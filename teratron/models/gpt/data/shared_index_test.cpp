// Blends and conversations through the cache of indices: several processes that need one at once, builders
// that die, damaged files, other data.
#include <csignal>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/data/indexed/index_cache.h"
#include "teratron/models/gpt/data/gpt_builder.h"
#include "teratron/models/gpt/sft/sft_dataset.h"
#include "teratron/testing/child_process.h"
#include "teratron/testing/fixtures.h"
#include "teratron/testing/samples.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
using testing::fixture;
using testing::run_child;

constexpr const char* kBuild = "data.build_index";

/// A token is a byte.
class ByteTokenizer : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for (const TokenSpan& span : encode_with_offsets(text)) ids.push_back(span.id);
  }
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override {
    std::vector<TokenSpan> spans;
    for (const char c : text) {
      const auto begin = static_cast<int64_t>(spans.size());
      spans.push_back({static_cast<unsigned char>(c), begin, begin + 1});
    }
    return spans;
  }
  std::string decode(std::span<const int32_t> ids) const override { return {ids.begin(), ids.end()}; }
  int64_t vocab_size() const override { return 256; }
  const SpecialTokens& special() const override { return special_; }

 private:
  SpecialTokens special_{.eod = 0};
};

enum class Kind : uint8_t { weighted_blend, exhaustive_blend, conversations };

/// One kind of data, whose index is the only one that is not cached yet.
class SharedIndex : public ::testing::TestWithParam<Kind> {
 protected:
  SharedIndex() {
    for (const char* name : {"a", "b"}) {
      for (const char* ending : {".bin", ".idx"})
        fs::copy_file(fixture("corpora/forty").string() + ending, folder_ / (std::string(name) + ending));
    }
    write_conversations(40);
    if (is_blend()) {
      read(near_data());
      remove_index();
    }
  }

  bool is_blend() const { return GetParam() != Kind::conversations; }
  int64_t length() const { return is_blend() ? 16 : 256; }
  fs::path cache() const { return folder_ / (is_blend() ? "a/cache" : "chats.jsonl.cache"); }
  static IndexCache near_data() { return {.place = IndexCache::Place::near_data}; }

  void write_conversations(int count) const {
    std::ofstream file(folder_ / "chats.jsonl");
    for (int i = 0; i < count; ++i)
      file << fmt::format(R"({{"prompt": "{0}?", "completion": "{0} {0}!"}})", i) << "\n";
  }

  std::shared_ptr<const Dataset> open(const IndexCache& cache) const {
    if (!is_blend()) {
      return build_sft_datasets({.sources = {.data_path = {folder_ / "chats.jsonl"},
                                             .split = "3,1,0",
                                             .samples = {100, 0, 0}},
                                 .sequence_length = length(),
                                 .chat = chat_,
                                 .tokenizer = tokenizer_,
                                 .cache = cache,
                                 .tokenizer_fingerprint = tokenizer_name_})
          .train;
    }
    const std::string a = folder_ / "a", b = folder_ / "b";
    DataSources sources{.data_path = {"0.3", a, "0.7", b}, .split = "1,0,0", .samples = {50, 0, 0}};
    if (GetParam() == Kind::exhaustive_blend) {
      sources.data_path = {a, b};
      sources.samples[0] = std::nullopt;
    }
    return build_gpt_datasets({.sources = sources, .sequence_length = length(), .cache = cache}).train;
  }

  std::vector<std::vector<int64_t>> read(const IndexCache& cache) const {
    const auto dataset = open(cache);
    std::vector<std::vector<int64_t>> samples;
    for (int64_t i = 0; i < dataset->size(); ++i) {
      const GPTSample sample = read_sample(*dataset, i, length());
      samples.push_back(sample.tokens);
      samples.emplace_back(sample.loss_mask.begin(), sample.loss_mask.end());
    }
    const std::string report = dataset->report();
    samples.emplace_back(report.begin(), report.end());
    return samples;
  }
  bool is_right() const { return read(near_data()) == read({}); }
  bool builds() const {
    const std::vector<std::string> points = record_fault_points([this] { open(near_data()); });
    return std::ranges::find(points, kBuild) != points.end();
  }

  /// The files of this kind's index.
  std::vector<fs::path> index() const {
    std::vector<fs::path> files;
    for (const std::string& name : list_directory(cache(), ExitCode::data)) {
      if (name.find(is_blend() ? "blend-" : "sft-") != name.npos) files.push_back(cache() / name);
    }
    return files;
  }
  void remove_index() const {
    for (const fs::path& file : index()) fs::remove(file);
  }
  size_t files_of_index() const { return is_blend() ? 3 : 4; }

  testing::TemporaryFolder folder_;
  ByteTokenizer tokenizer_;
  std::string tokenizer_name_ = "bytes";
  ChatTemplate chat_ = ChatTemplate::find("chatml");
};

TEST_P(SharedIndex, IsReadFromFilesAsItWasBuilt) {
  const auto expected = read({});
  EXPECT_GT(expected.size(), 20U);
  EXPECT_TRUE(builds());
  EXPECT_EQ(index().size(), files_of_index()) << "no lock is left";
  EXPECT_FALSE(builds());
  EXPECT_EQ(read(near_data()), expected);
}

// Which of them builds, its exit code says.
TEST_P(SharedIndex, IsBuiltOnceByProcessesThatNeedItAtOnce) {
  std::atomic<int> built = 0, right = 0;
  {
    std::vector<std::jthread> starters;
    for (int i = 0; i < 6; ++i) {
      starters.emplace_back([&] {
        const int code = run_child([&] { return builds() ? 10 : is_right() ? 11 : 12; });
        built += code == 10 ? 1 : 0;
        right += code == 11 ? 1 : 0;
      });
    }
  }
  EXPECT_EQ(built, 1);
  EXPECT_EQ(right, 5);
  EXPECT_TRUE(is_right());
  EXPECT_EQ(index().size(), files_of_index());
}

TEST_P(SharedIndex, IsBuiltByTheNextIfTheBuilderDies) {
  for (const char* fault : {"data.build_index:kill", "file.write@hit=1:kill", "file.rename@hit=1:kill",
                            "file.rename@hit=2:kill", "file.rename@hit=3:kill"}) {
    EXPECT_EQ(run_child([&] {
                arm_faults(fault);
                open(near_data());
                return 0;
              }),
              128 + SIGKILL)
        << fault;
    EXPECT_TRUE(builds()) << fault;
    EXPECT_TRUE(is_right()) << fault;
    EXPECT_EQ(index().size(), files_of_index()) << fault << ": temporary files of the dead are removed";
    remove_index();
  }
}

// The builder stands still and holds the lock; one who waits builds as soon as it is killed.
TEST_P(SharedIndex, IsBuiltByOneWhoWaitsWhenTheBuilderDies) {
  const testing::ChildProcess builder([&] {
    arm_faults("data.build_index:stop");
    open(near_data());
    return 0;
  });
  ASSERT_TRUE(builder.wait_until_stopped());
  const testing::ChildProcess waiter([&] { return builds() && is_right() ? 0 : 1; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(waiter.is_running()) << "it waits for the builder";
  builder.kill();
  EXPECT_EQ(waiter.exit_code(), 0);
  EXPECT_EQ(builder.exit_code(), 128 + SIGKILL);
}

TEST_P(SharedIndex, IsBuiltAgainWhereItIsDamaged) {
  open(near_data());
  for (const fs::path& file : index()) {
    const std::string content = testing::read_bytes(file);
    testing::write_bytes(file, content.substr(0, content.size() / 2));
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(is_right()) << file;
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("ebuilding the index"), std::string::npos);
    EXPECT_EQ(testing::read_bytes(file), content);
  }
}

// Entries that no size gives away.
TEST_P(SharedIndex, EntriesOutsideOfTheDataAreErrors) {
  open(near_data());
  for (const fs::path& file : index()) {
    const bool has_positions = file.string().ends_with("_index.npy") || file.string().ends_with("s.npy");
    if (!has_positions || file.string().ends_with("-tokens.npy")) continue;
    const std::string content = testing::read_bytes(file);
    testing::write_bytes(file, content.substr(0, 128) + std::string(content.size() - 128, '\x77'));
    const std::string said = testing::message_of([&] { read(near_data()); });
    EXPECT_NE(said.find("damaged"), std::string::npos) << file << ": " << said;
    EXPECT_NE(said.find("Remove the files"), std::string::npos) << file << ": " << said;
    testing::write_bytes(file, content);
  }
  EXPECT_TRUE(is_right());
}

INSTANTIATE_TEST_SUITE_P(Of, SharedIndex,
                         ::testing::Values(Kind::weighted_blend, Kind::exhaustive_blend, Kind::conversations),
                         [](const auto& info) {
                           return info.param == Kind::weighted_blend     ? "WeightedBlend"
                                  : info.param == Kind::exhaustive_blend ? "ExhaustiveBlend"
                                                                         : "Conversations";
                         });

class SharedConversations : public SharedIndex {};

TEST_P(SharedConversations, OfOtherDataAndTokenizersHaveTheirOwnIndex) {
  EXPECT_TRUE(builds());
  EXPECT_FALSE(builds());
  tokenizer_name_ = "others";
  EXPECT_TRUE(builds());
  chat_ = ChatTemplate::find("zephyr");
  EXPECT_TRUE(builds());
  chat_ = chat_.with_marks({.bos = "<s>", .eos = "<end>"});
  EXPECT_TRUE(builds());
  write_conversations(41);
  EXPECT_TRUE(builds());
  EXPECT_TRUE(is_right());
  EXPECT_FALSE(builds());
}

// As many processes as wait may find it out: nothing is cached, no lock stays.
TEST_P(SharedConversations, ThatAreWrongAreToldAgain) {
  std::ofstream(folder_ / "chats.jsonl") << "{\"prompt\": 3}\n{\"prompt\": 4}\n";
  for (int i = 0; i < 2; ++i) {
    const std::string said = testing::message_of([&] { open(near_data()); });
    EXPECT_NE(said.find("chats.jsonl:1"), std::string::npos) << said;
    EXPECT_TRUE(index().empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Of, SharedConversations, ::testing::Values(Kind::conversations));

}  // namespace
}  // namespace teratron
