// The legacy index format, and the 31- and 32-bit limits of both formats, with sparse files.
#include "teratron/data/indexed/idx_format.h"

#include <cstring>
#include <fstream>
#include <numeric>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "teratron/base/error.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/data/indexed/indexed_dataset_builder.h"
#include "teratron/models/gpt/data/gpt_dataset.h"
#include "teratron/testing/fixtures.h"
#include "teratron/testing/samples.h"

namespace teratron {
namespace {

using testing::message_of;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

std::string longs(std::initializer_list<int64_t> values) {
  std::string bytes;
  for (const int64_t value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return bytes;
}

void write_legacy(const std::string& prefix) {
  IndexedDatasetBuilder builder(prefix, Dtype::i32, IndexFormat::legacy);
  builder.add_sequence(std::vector<int32_t>{1, 2, 3});
  builder.add_sequence(std::vector<int32_t>{70000});
  builder.end_document();
  builder.end_document();
  builder.add_sequence(std::vector<int32_t>{5, 6});
  builder.end_document();
  builder.finalize();
}

/// version, dtype code and size, sequences, sizes, documents + 1; first sizes; offsets; sizes; documents.
const std::string kLegacyIndex =
    std::string("TNTIDX\0\0", 8) + longs({1, 4, 4, 3, 3, 4, 0, 1, 2, 3, 0, 3, 4, 6, 3, 1, 2, 0, 2, 2, 3});

TEST(LegacyIndex, BytesOfTheFormat) {
  TemporaryFolder folder;
  write_legacy(folder / "a");
  EXPECT_EQ(read_bytes(folder / "a.idx"), kLegacyIndex);
  EXPECT_EQ(read_bytes(folder / "a.bin"),
            std::string("\1\0\0\0\2\0\0\0\3\0\0\0\x70\x11\1\0\5\0\0\0\6\0\0\0", 24));
  EXPECT_EQ(token_dtype(100, IndexFormat::legacy), Dtype::i32);
}

TEST(LegacyIndex, IsReadLikeTheMmapFormat) {
  TemporaryFolder folder;
  write_legacy(folder / "a");
  const IndexedDataset dataset(folder / "a");
  dataset.verify();
  EXPECT_EQ(dataset.format(), IndexFormat::legacy);
  EXPECT_EQ(dataset.documents(), 3);
  EXPECT_EQ(dataset.lengths(0, 3), (std::vector<int32_t>{3, 1, 2}));
  EXPECT_EQ(dataset.document_starts(0, 4), (std::vector<int64_t>{0, 2, 2, 3}));
  std::vector<int64_t> tokens;
  for (int64_t s = 0; s < 3; ++s) dataset.read(s, 0, -1, tokens);
  EXPECT_EQ(tokens, (std::vector<int64_t>{1, 2, 3, 70000, 5, 6}));
  IndexedDatasetBuilder builder(folder / "b", Dtype::i32);  // merging converts
  builder.add_dataset(dataset);
  builder.finalize();
  const IndexedDataset merged(folder / "b");
  merged.verify();
  EXPECT_EQ(merged.format(), IndexFormat::mmap);
  EXPECT_EQ(merged.lengths(0, 3), dataset.lengths(0, 3));
  EXPECT_EQ(read_bytes(folder / "b.bin"), read_bytes(folder / "a.bin"));
}

TEST(LegacyIndex, Fault25DamagedFilesAreRejected) {
  TemporaryFolder folder;
  write_legacy(folder / "a");
  const auto error_of = [&](const std::string& idx, bool multimodal = false) {
    write_bytes(folder / "a.idx", idx);
    return message_of([&] { IndexedDataset(folder / "a", multimodal).verify(); });
  };
  const auto changed = [](size_t number, int64_t value) {
    std::string idx = kLegacyIndex;
    std::memcpy(&idx[8 + 8 * number], &value, sizeof(value));
    return idx;
  };
  EXPECT_EQ(error_of(kLegacyIndex), "");
  for (size_t size = 0; size < kLegacyIndex.size(); ++size)
    EXPECT_NE(error_of(kLegacyIndex.substr(0, size)), "") << size;
  EXPECT_NE(error_of(kLegacyIndex, true).find("has no modes"), std::string::npos);
  const std::pair<size_t, const char*> numbers[] = {
      {0, "version 7"},    {2, "has 7 bytes"}, {3, "sizes for 7"}, {4, "7 sizes"}, {5, "does not fit"},
      {7, "first size 7"}, {11, "token 7"},    {13, "token 7"},    {14, "byte"},   {17, "document"}};
  for (const auto& [number, expected] : numbers) {
    EXPECT_NE(error_of(changed(number, 7)).find(expected), std::string::npos)
        << number << error_of(changed(number, 7));
  }
  for (const int64_t value : {INT64_MIN, int64_t{-1}, INT64_MAX, int64_t{1} << 61}) {
    for (size_t number = 0; number < 21; ++number) EXPECT_NE(error_of(changed(number, value)), "") << number;
  }
}

/// A dataset whose .bin is sparse except for the last token of each sequence, which is the sequence's number
/// plus 1.
void write_sparse(const std::string& prefix, const std::vector<int32_t>& lengths) {
  std::string idx("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08", 18);
  const auto count = static_cast<int64_t>(lengths.size());
  idx += longs({count, count + 1});
  idx.append(reinterpret_cast<const char*>(lengths.data()), lengths.size() * sizeof(int32_t));
  std::ofstream bin(prefix + ".bin", std::ios::binary);
  int64_t token = 0;
  for (int64_t s = 0; s < count; ++s) {
    idx += longs({2 * token});
    token += lengths[static_cast<size_t>(s)];
    bin.seekp(2 * token - 2);
    bin.put(static_cast<char>(s + 1)).put('\0');
  }
  for (int64_t d = 0; d <= count; ++d) idx += longs({d});
  write_bytes(prefix + ".idx", idx);
}

TEST(IndexLimits, TokensBeyond32Bits) {
  TemporaryFolder folder;
  const std::vector<int32_t> lengths = {1 << 30, INT32_MAX, 1 << 30, INT32_MAX - 1, 3};
  write_sparse(folder / "a", lengths);  // 6.4e9 tokens, 12.9e9 bytes, a few blocks on disk
  const auto data = std::make_shared<IndexedDataset>(folder / "a");
  data->verify();
  EXPECT_EQ(data->tokens(), std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  for (int64_t s = 0; s < data->sequences(); ++s) {
    std::vector<int64_t> tokens;
    data->read(s, lengths[static_cast<size_t>(s)] - 2, 2, tokens);
    EXPECT_EQ(tokens, (std::vector<int64_t>{0, s + 1}));
  }
  // Samples of 2^20 tokens: the entries of the sample index follow from dividing the position of a token.
  const GPTIndexOptions options{.sequence_length = 1 << 20, .samples = 8000};
  const GPTIndex index = build_gpt_index({0, 5}, lengths, options);
  EXPECT_EQ(index.epochs, 2);
  std::vector<int64_t> starts = {0};
  for (int64_t e = 0; e < index.document_index.rows(); ++e)
    starts.push_back(starts.back() + lengths[static_cast<size_t>(index.document_index.at(e))]);
  EXPECT_EQ(index.samples(), (starts.back() - 1) >> 20);
  for (int64_t i = 0; i <= index.samples(); ++i) {
    const int64_t position =
        starts[static_cast<size_t>(index.sample_index.at(i, 0))] + index.sample_index.at(i, 1);
    ASSERT_EQ(position, i << 20) << i;
  }
  const GPTDataset dataset(data, index, options, {});
  EXPECT_EQ(read_sample(dataset, index.samples() - 1, 1 << 20).tokens.size(), size_t{1} << 20);
}

TEST(IndexLimits, SequencesBeyond32Bits) {
  TemporaryFolder folder;
  for (const int64_t count : {(int64_t{1} << 31) + 3, (int64_t{1} << 32) + 3}) {
    write_bytes(folder / "a.bin", "");
    std::string head("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08", 18);
    head += longs({count, count + 1});
    {
      std::ofstream idx(folder / "a.idx", std::ios::binary);
      idx << head;
      idx.seekp(34 + 12 * count + 8 * count);  // all documents start at sequence 0, the last ends at `count`
      idx << longs({count});
    }
    const IndexedDataset dataset(folder / "a");
    EXPECT_EQ(dataset.sequences(), count);
    EXPECT_EQ(dataset.length(count - 1), 0);
    EXPECT_EQ(dataset.lengths(count - 3, 3), (std::vector<int32_t>{0, 0, 0}));
    EXPECT_EQ(dataset.document_start(count), count);
    EXPECT_EQ(dataset.document_of(count - 1), count - 1);
    const std::string error = message_of(
        [&] { build_gpt_index({count - 3, count}, std::vector<int32_t>{1, 2, 3}, {.sequence_length = 1}); });
    EXPECT_NE(error.find("exceed the 32-bit document index"), std::string::npos) << error;
  }
}

/// `count` times document 0, without allocating: untouched anonymous memory reads as zeros.
class ZeroDocuments {
 public:
  explicit ZeroDocuments(size_t count)
      : count_(count),
        memory_(mmap(nullptr, bytes(), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::runtime_error("mmap");
    madvise(memory_, bytes(), MADV_HUGEPAGE);
  }
  ~ZeroDocuments() { munmap(memory_, bytes()); }
  ZeroDocuments(const ZeroDocuments&) = delete;
  std::span<const int32_t> all() const { return {static_cast<const int32_t*>(memory_), count_}; }

 private:
  size_t bytes() const { return count_ * sizeof(int32_t); }
  size_t count_;
  void* memory_;
};

#if defined(__SANITIZE_THREAD__)
constexpr bool thread_sanitizer = true;  // it stores four shadow bytes for each byte accessed
#else
constexpr bool thread_sanitizer = false;
#endif

TEST(IndexLimits, PositionsBeyond31Bits) {
  if (thread_sanitizer) GTEST_SKIP() << "ThreadSanitizer would need 32 GiB";
  constexpr int64_t kLength = 1 << 24;  // documents of one token: a sample spans this many
  const std::vector<int32_t> lengths = {1};
  const GPTIndexOptions options{.sequence_length = kLength};
  const ZeroDocuments narrow(INT32_MAX), first_wide(size_t{INT32_MAX} + 1);
  EXPECT_EQ(build_sample_index({narrow.all(), lengths}, options, 1).descr(), "<i4");
  EXPECT_EQ(build_sample_index({first_wide.all(), lengths}, options, 1).descr(), "<i8");

  const ZeroDocuments wide((size_t{1} << 31) + kLength);
  const int64_t samples = static_cast<int64_t>(wide.all().size() - 1) / kLength;
  const IndexArray index = build_sample_index({wide.all(), lengths}, options, samples);
  ASSERT_EQ(index.rows(), samples + 1);
  EXPECT_GT(index.at(samples), INT32_MAX);
  for (int64_t i = 0; i <= samples; ++i) {
    ASSERT_EQ(index.at(i, 0), i * kLength);
    ASSERT_EQ(index.at(i, 1), 0);
  }
  TemporaryFolder folder;
  index.save(folder / "sample_index.npy");
  EXPECT_EQ(IndexArray::open(folder / "sample_index.npy").at(samples), samples * kLength);
}

TEST(IndexLimits, WideArraysReturnTheSameSamples) {
  TemporaryFolder folder;
  write_sparse(folder / "a", {3, 5, 2, 9, 4});
  const auto data = std::make_shared<IndexedDataset>(folder / "a");
  const GPTIndexOptions options{.sequence_length = 4, .samples = 20};
  const GPTIndex narrow = build_gpt_index({0, 5}, data->lengths(0, 5), options);
  GPTIndex wide = narrow;
  std::vector<int64_t> starts, order;
  for (int64_t i = 0; i < narrow.sample_index.rows(); ++i)
    starts.insert(starts.end(), {narrow.sample_index.at(i, 0), narrow.sample_index.at(i, 1)});
  for (int64_t i = 0; i < narrow.samples(); ++i) order.push_back(narrow.shuffle_index.at(i));
  wide.sample_index = IndexArray(starts, 2);
  wide.shuffle_index = IndexArray(order);
  const GPTDataset a(data, narrow, options, {}), b(data, wide, options, {});
  ASSERT_EQ(a.size(), b.size());
  for (int64_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(read_sample(a, i, 4).tokens, read_sample(b, i, 4).tokens) << i;
  }
}

}  // namespace
}  // namespace teratron
