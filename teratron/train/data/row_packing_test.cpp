#include "teratron/train/data/row_packing.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/nn/tokens/packed_rows.h"

namespace teratron {
namespace {

// Rows of 4: a b c -, d - - -, e f g h
MicroBatch three_rows() {
  const at::Tensor tokens_BS = at::tensor({1, 2, 3, 0, 4, 0, 0, 0, 5, 6, 7, 8}, at::kLong).view({3, 4});
  const at::Tensor index_SB = at::arange(4, at::kLong).unsqueeze(1).expand({4, 3});
  return {.tensors = {{"tokens", tokens_BS.t().contiguous()},
                      {"sequence_index", index_SB},
                      {"labels", at::tensor({7, 8, 9}, at::kLong).unsqueeze(1)},
                      {"cu_seqlens", at::tensor({0, 3, 4, 5, 8, 12}, at::kInt)}},
          .sample_ids_B = at::tensor({10, 11, 12}, at::kLong)};
}

BatchSchema schema_of_rows() {
  return {{.name = "tokens", .shape = {4}},
          {.name = "types", .shape = {4}},  // not on this stage
          {.name = "sequence_index", .shape = {4}, .kind = Column::Kind::index},
          {.name = "labels", .shape = {1}, .kind = Column::Kind::sample},
          {.name = "segment_start", .type = ColumnType::i32, .shape = {4}, .kind = Column::Kind::segments}};
}

std::vector<int64_t> values(const at::Tensor& x) {
  const at::Tensor flat = x.to(at::kLong).contiguous().view(-1);
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

using Values = std::vector<int64_t>;

TEST(RowPacking, LinesUpTheSamples) {
  const MicroBatch packed = without_padding(three_rows(), schema_of_rows(), {.lengths = {3, 1, 4}, .row = 4});
  EXPECT_EQ(packed["tokens"].sizes(), (std::vector<int64_t>{8, 1}));
  EXPECT_EQ(values(packed["tokens"]), (Values{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(values(packed["sequence_index"]), (Values{0, 1, 2, 0, 0, 1, 2, 3}));
  EXPECT_EQ(values(packed["row_starts"]), (Values{0, 3, 4}));
  EXPECT_EQ(values(packed["cu_seqlens"]), (Values{0, 3, 4, 8, 8}));
  EXPECT_EQ(values(packed["padded_cu_seqlens"]), (Values{0, 3, 4, 5, 6, 7, 8, 12}));
  EXPECT_EQ(values(packed["labels"]), (Values{7, 8, 9}));
  EXPECT_EQ(values(packed.sample_ids_B), (Values{10, 11, 12}));
  EXPECT_FALSE(packed["types"].defined());
}

TEST(RowPacking, FillsUpWithPadding) {
  const MicroBatch packed =
      without_padding(three_rows(), schema_of_rows(), {.lengths = {3, 1, 4}, .row = 4, .multiple = 5});
  EXPECT_EQ(values(packed["tokens"]), (Values{1, 2, 3, 4, 5, 6, 7, 8, 0, 0}));
  EXPECT_EQ(values(packed["sequence_index"]), (Values{0, 1, 2, 0, 0, 1, 2, 3, 3, 1}));
  EXPECT_EQ(values(packed["cu_seqlens"]), (Values{0, 3, 4, 8, 10, 10}));
  const MicroBatch longest =
      without_padding(three_rows(), schema_of_rows(), {.lengths = {1, 1, 1}, .row = 4, .multiple = 9});
  EXPECT_EQ(values(longest["cu_seqlens"]), (Values{0, 1, 2, 3, 7, 9, 9})) << "no segment exceeds a row";
}

TEST(RowPacking, LeavesFullRowsAlone) {
  for (const RowPacking& packing : {RowPacking{.lengths = {4, 4, 4}, .row = 4},
                                    RowPacking{.lengths = {3, 3, 4}, .row = 4, .multiple = 6}}) {
    const MicroBatch same = without_padding(three_rows(), schema_of_rows(), packing);
    EXPECT_EQ(same.padded_length, 0);
    EXPECT_EQ(same["tokens"].sizes(), (std::vector<int64_t>{4, 3}));
  }
}

TEST(RowPacking, IsUndoneWithZeros) {
  const MicroBatch rows = three_rows();
  const MicroBatch packed = without_padding(rows, schema_of_rows(), {.lengths = {3, 1, 4}, .row = 4});
  EXPECT_TRUE(at::equal(with_padding(packed["tokens"], packed_rows(packed)), rows["tokens"]));
  EXPECT_TRUE(at::equal(without_padding(rows["tokens"], packed_rows(packed)), packed["tokens"]));
}

TEST(RowPacking, RoundsToAFewTokens) {
  for (const int64_t row : {8, 128, 512}) {
    for (const int64_t samples : {1, 4, 64, 256}) {
      for (const int64_t ranks : {1, 2, 8}) {
        const int64_t multiple = packing_multiple(row, samples, ranks);
        EXPECT_EQ(multiple % (16 * ranks), 0);
        EXPECT_LE(multiple, std::max(16 * ranks, row * samples / 64));
      }
    }
  }
}

}  // namespace
}  // namespace teratron
