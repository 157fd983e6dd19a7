#include "teratron/data/indexed/indexed_dataset.h"

#include <random>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/data/indexed/indexed_dataset_builder.h"
#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

using testing::fixture;
using testing::message_of;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

/// Writes a small dataset with empty sequences and documents; returns its documents.
std::vector<std::vector<std::vector<int32_t>>> write_small(const std::string& prefix, Dtype dtype) {
  const std::vector<std::vector<std::vector<int32_t>>> documents = {
      {{1, 2, 3}, {4}}, {}, {{5, 100, 7, 8, 9}}, {{}, {1}}, {{3, 3, 3, 3}}};
  IndexedDatasetBuilder builder(prefix, dtype);
  for (const auto& document : documents) {
    for (const auto& sequence : document) builder.add_sequence(sequence);
    builder.end_document();
  }
  builder.finalize();
  return documents;
}

TEST(IndexedDatasetBuilder, BytesOfTheFormat) {
  TemporaryFolder folder;
  IndexedDatasetBuilder builder(folder / "a", Dtype::u16);
  builder.add_sequence(std::vector<int32_t>{1, 2, 3});
  builder.add_sequence(std::vector<int32_t>{4, 5});
  builder.end_document();
  builder.add_sequence(std::vector<int32_t>{6});
  builder.end_document();
  builder.finalize();
  const std::string idx = read_bytes(folder / "a.idx");
  ASSERT_EQ(idx.size(), 94u);
  std::string expected("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08\3\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 34);
  expected += std::string("\3\0\0\0\2\0\0\0\1\0\0\0", 12);
  for (const char value : {0, 6, 10, 0, 2, 3}) expected += value + std::string(7, '\0');
  EXPECT_EQ(idx, expected);
  EXPECT_EQ(read_bytes(folder / "a.bin"), std::string("\1\0\2\0\3\0\4\0\5\0\6\0", 12));
}

TEST(IndexedDatasetBuilder, RewritesMegatronsFilesByteForByte) {
  TemporaryFolder folder;
  for (const std::string name : {"six", "forty", "grouped", "one", "wide"}) {
    const std::string prefix = fixture("corpora/" + name).string();
    const IndexedDataset dataset(prefix);
    dataset.verify();
    IndexedDatasetBuilder builder(folder / name, dataset.dtype());
    std::vector<int64_t> wide;
    for (int64_t document = 0; document < dataset.documents(); ++document) {
      for (int64_t s = dataset.document_start(document); s < dataset.document_start(document + 1); ++s) {
        wide.clear();
        dataset.read(s, 0, -1, wide);
        builder.add_sequence(std::vector<int32_t>(wide.begin(), wide.end()));
      }
      builder.end_document();
    }
    builder.finalize();
    EXPECT_EQ(read_bytes(folder / (name + ".idx")), read_bytes(prefix + ".idx"));
    EXPECT_EQ(read_bytes(folder / (name + ".bin")), read_bytes(prefix + ".bin"));
  }
}

TEST(IndexedDatasetBuilder, NothingAppearsWithoutFinalize) {
  TemporaryFolder folder;
  {
    IndexedDatasetBuilder builder(folder / "a", Dtype::i32);
    builder.add_sequence(std::vector<int32_t>{1});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(IndexedDatasetBuilder, TokenThatDoesNotFit) {
  TemporaryFolder folder;
  IndexedDatasetBuilder builder(folder / "a", Dtype::u16);
  EXPECT_NE(message_of([&] { builder.add_sequence(std::vector<int32_t>{1, 65536}); }).find("65536"),
            std::string::npos);
}

TEST(IndexedDatasetBuilder, ElementTypeByVocabularySize) {
  EXPECT_EQ(token_dtype(65499), Dtype::u16);
  EXPECT_EQ(token_dtype(65500), Dtype::i32);
  EXPECT_EQ(token_dtype(0), Dtype::i32);
}

TEST(IndexedDataset, ReadsEveryTypeAndPart) {
  TemporaryFolder folder;
  for (const Dtype dtype : {Dtype::u8, Dtype::i8, Dtype::i16, Dtype::u16, Dtype::i32, Dtype::i64}) {
    const std::string prefix = folder / std::string(name_of(dtype));
    const auto documents = write_small(prefix, dtype);
    const IndexedDataset dataset(prefix);
    dataset.verify();
    ASSERT_EQ(dataset.documents(), static_cast<int64_t>(documents.size()));
    EXPECT_EQ(dataset.tokens(), 14);
    int64_t sequence = 0;
    for (size_t d = 0; d < documents.size(); ++d) {
      EXPECT_EQ(dataset.document_start(d), sequence);
      for (const auto& expected : documents[d]) {
        EXPECT_EQ(dataset.document_of(sequence), static_cast<int64_t>(d));
        const auto size = static_cast<int64_t>(expected.size());
        EXPECT_EQ(dataset.length(sequence), size);
        for (int64_t start = 0; start <= size; ++start) {
          for (int64_t count = 0; start + count <= size; ++count) {
            std::vector<int64_t> tokens = {-7};
            EXPECT_EQ(dataset.read(sequence, start, count, tokens), count);
            std::vector<int64_t> wanted = {-7};
            wanted.insert(wanted.end(), expected.begin() + start, expected.begin() + start + count);
            EXPECT_EQ(tokens, wanted);
          }
        }
        ++sequence;
      }
    }
    EXPECT_EQ(dataset.sequences(), sequence);
  }
}

TEST(IndexedDataset, ReadsBeyondASequenceAreErrors) {
  TemporaryFolder folder;
  write_small(folder / "a", Dtype::i32);
  const IndexedDataset dataset(folder / "a");
  std::vector<int64_t> tokens;
  EXPECT_NE(message_of([&] { dataset.read(0, 2, 2, tokens); }).find("sequence 0"), std::string::npos);
  EXPECT_NE(message_of([&] { dataset.read(0, 4, -1, tokens); }).find("sequence 0"), std::string::npos);
}

TEST(IndexedDataset, MissingFile) {
  TemporaryFolder folder;
  EXPECT_NE(message_of([&] { IndexedDataset(folder / "none"); }).find("none.idx"), std::string::npos);
  EXPECT_NE(message_of([&] { BinaryReader(folder.path().string()); }).find("directory"), std::string::npos);
  write_bytes(folder / "my_text_document.idx", "");
  EXPECT_NE(message_of([&] { IndexedDataset(folder / "my"); }).find("Use " + (folder / "my_text_document")),
            std::string::npos);
}

TEST(IndexedDataset, TextInPlaceOfADatasetSaysWhatToRun) {
  TemporaryFolder folder;
  for (const std::string name : {"corpus.jsonl", "corpus.json.gz", "corpus.txt"}) {
    write_bytes(folder / name, "{}");
    const std::string message = message_of([&] { IndexedDataset(folder / name); });
    const std::string input = name.ends_with(".txt") ? folder / "corpus.jsonl" : folder / name;
    EXPECT_NE(message.find(fmt::format("un `teratron preprocess --input {} --output-prefix {}`", input,
                                       folder / "corpus")),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("then use " + (folder / "corpus_text_document")), std::string::npos) << message;
  }
  write_small(folder / "corpus.txt", Dtype::i32);
  EXPECT_GT(IndexedDataset(folder / "corpus.txt").sequences(), 0) << "a prefix may end like this";
}

TEST(IndexedDataset, MultimodalModes) {
  TemporaryFolder folder;
  write_small(folder / "a", Dtype::i32);
  write_bytes(folder / "a.idx", read_bytes(folder / "a.idx") + std::string("\0\1\2\3\4\5", 6));
  EXPECT_NE(message_of([&] { IndexedDataset(folder / "a"); }).find("does not fit"), std::string::npos);
  const IndexedDataset dataset(folder / "a", true);
  EXPECT_EQ(dataset.modes(1, 3), (std::vector<int8_t>{1, 2, 3}));
}

/// Opens, verifies and reads everything: true on success, false for a typed error; anything else fails the
/// test.
bool survives(const std::string& prefix) {
  try {
    const IndexedDataset dataset(prefix);
    std::vector<int64_t> tokens;
    for (int64_t s = 0; s < dataset.sequences(); ++s) dataset.read(s, 0, -1, tokens);
    dataset.verify();
    return true;
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::data);
    return false;
  }
}

TEST(IndexedDataset, Fault25EveryPrefixIsRejected) {
  TemporaryFolder folder;
  write_small(folder / "a", Dtype::u16);
  const std::string idx = read_bytes(folder / "a.idx");
  const std::string bin = read_bytes(folder / "a.bin");
  write_bytes(folder / "b.bin", bin);
  for (size_t size = 0; size < idx.size(); ++size) {
    write_bytes(folder / "b.idx", idx.substr(0, size));
    EXPECT_FALSE(survives(folder / "b")) << size;
  }
  write_bytes(folder / "b.idx", idx + '\0');
  EXPECT_FALSE(survives(folder / "b"));
  write_bytes(folder / "b.idx", idx);
  EXPECT_TRUE(survives(folder / "b"));
  for (size_t size = 0; size < bin.size(); ++size) {
    write_bytes(folder / "b.bin", bin.substr(0, size));
    EXPECT_FALSE(survives(folder / "b")) << size;
  }
}

TEST(IndexedDataset, Fault25EveryFlippedBitOfTheIndexIsFound) {
  TemporaryFolder folder;
  write_small(folder / "a", Dtype::u16);
  const std::string idx = read_bytes(folder / "a.idx");
  write_bytes(folder / "b.bin", read_bytes(folder / "a.bin"));
  int read_anyway = 0;
  for (size_t bit = 0; bit < idx.size() * 8; ++bit) {
    std::string changed = idx;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    write_bytes(folder / "b.idx", changed);
    read_anyway += survives(folder / "b") ? 1 : 0;
  }
  // Undetectable: i16 instead of u16, and document boundaries that moved between their neighbours.
  EXPECT_LE(read_anyway, 8);
}

TEST(IndexedDataset, Fault25RandomFiles) {
  TemporaryFolder folder;
  write_small(folder / "a", Dtype::i32);
  const std::string idx = read_bytes(folder / "a.idx");
  write_bytes(folder / "b.bin", read_bytes(folder / "a.bin"));
  std::mt19937 random(5);
  for (int round = 0; round < 1000; ++round) {
    std::string changed = idx;
    for (int i = 0; i < 6; ++i) changed[random() % changed.size()] = static_cast<char>(random());
    write_bytes(folder / "b.idx", changed);
    survives(folder / "b");
  }
}

TEST(IndexedDataset, Fault25HugeCountsAreRejectedBeforeAllocating) {
  TemporaryFolder folder;
  write_small(folder / "a", Dtype::i32);
  std::string idx = read_bytes(folder / "a.idx");
  for (const size_t field : {18, 26}) {
    for (const uint64_t value : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 61, uint64_t{1} << 60}) {
      std::string changed = idx;
      std::memcpy(&changed[field], &value, sizeof(value));
      write_bytes(folder / "b.idx", changed);
      write_bytes(folder / "b.bin", read_bytes(folder / "a.bin"));
      EXPECT_NE(message_of([&] { IndexedDataset(folder / "b"); }).find("does not fit"), std::string::npos);
    }
  }
}

TEST(IndexedDataset, Fault26FileCutWhileOpen) {
  TemporaryFolder folder;
  write_small(folder / "a", Dtype::i32);
  const IndexedDataset dataset(folder / "a");
  std::filesystem::resize_file(folder / "a.bin", 8);
  std::vector<int64_t> tokens;
  const std::string message = message_of([&] { dataset.read(2, 0, -1, tokens); });
  EXPECT_NE(message.find("a.bin"), std::string::npos);
  EXPECT_NE(message.find("16"), std::string::npos) << message;  // offset of the sequence
}

TEST(IndexedDataset, MergeNeedsOneElementType) {
  TemporaryFolder folder;
  write_small(folder / "a", Dtype::i32);
  IndexedDatasetBuilder builder(folder / "b", Dtype::u16);
  EXPECT_NE(message_of([&] { builder.add_dataset(IndexedDataset(folder / "a")); }).find("one tokenizer"),
            std::string::npos);
}

TEST(IndexedDataset, MergeOfTheSameTwice) {
  TemporaryFolder folder;
  write_small(folder / "a", Dtype::i32);
  IndexedDatasetBuilder builder(folder / "b", Dtype::i32);
  const IndexedDataset part(folder / "a");
  builder.add_dataset(part);
  builder.add_dataset(part);
  builder.finalize();
  const IndexedDataset merged(folder / "b");
  merged.verify();
  EXPECT_EQ(merged.sequences(), 2 * part.sequences());
  EXPECT_EQ(merged.document_start(part.documents() + 2), part.sequences() + 2);
  EXPECT_EQ(read_bytes(folder / "b.bin"), read_bytes(folder / "a.bin") + read_bytes(folder / "a.bin"));
}

}  // namespace
}  // namespace teratron
