#include "teratron/train/data/batch_source.h"

#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"

namespace teratron {
namespace {

constexpr int64_t sample_length = 8;

BatchSchema schema() {
  using Kind = Column::Kind;
  using Stages = Column::Stages;
  return {
      {.name = "tokens", .shape = {sample_length}, .stages = Stages::first},
      {.name = "weights", .type = ColumnType::f32, .shape = {sample_length, 3}, .stages = Stages::last},
      {.name = "kind", .shape = {2}, .kind = Kind::sample},
      {.name = "sequence_index", .shape = {sample_length}, .kind = Kind::index},
      {.name = "segment_start", .type = ColumnType::i32, .shape = {sample_length}, .kind = Kind::segments}};
}

// Token s of sample i is 100 * i + s; a document starts at token i.
class Numbers : public Dataset {
 public:
  int64_t size() const override { return 6; }
  std::string describe() const override { return "numbers"; }
  void get(int64_t i, const Sample& sample) const override {
    for (int64_t s = 0; s < sample_length; ++s) {
      sample.i64("tokens")[s] = 100 * i + s;
      for (int64_t f = 0; f < 3; ++f) sample.f32("weights")[3 * s + f] = static_cast<float>(10 * s + f);
      sample.i32("segment_start")[s] = static_cast<int32_t>(s < i ? 0 : i);
    }
    sample.i64("kind")[1] = i;
  }
};

BatchSource source_of(const Mesh& mesh) {
  const BatchSource::Options options{
      .loader = {.sampler = {.total_samples = 6, .micro_batch_size = 2}, .num_workers = 0},
      .schema = schema()};
  return {std::make_shared<Numbers>(), options, mesh};
}

at::Tensor row(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong);
}

void expect_second_batch(const MicroBatch& batch, const Group& stages) {
  ASSERT_EQ(batch["tokens"].defined(), stages.rank == 0);
  ASSERT_EQ(batch["weights"].defined(), stages.rank == stages.size - 1);
  if (batch["tokens"].defined()) {
    EXPECT_EQ(batch["tokens"].sizes(), (at::IntArrayRef{sample_length, 2}));
    EXPECT_TRUE(at::equal(batch["tokens"].select(1, 1), row({300, 301, 302, 303, 304, 305, 306, 307})));
  }
  if (batch["weights"].defined()) {
    EXPECT_EQ(batch["weights"].sizes(), (at::IntArrayRef{sample_length, 2, 3}));
    EXPECT_EQ(batch["weights"][4][1][2].item<float>(), 42.0F);
  }
  EXPECT_TRUE(at::equal(batch["kind"], row({0, 2, 0, 3}).view({2, 2})));
  EXPECT_TRUE(at::equal(batch["sequence_index"].select(1, 1), at::arange(sample_length)));
  EXPECT_EQ(batch["sequence_index"].stride(1), 0);
  EXPECT_TRUE(at::equal(batch["cu_seqlens"], at::tensor({0, 2, 8, 11, 16}, at::kInt)));
  EXPECT_FALSE(batch["segment_start"].defined());
  EXPECT_TRUE(at::equal(batch.sample_ids_B, row({2, 3})));
}

TEST(BatchSource, StacksTheColumnsOfEveryStage) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {1, 3}, {2, 2}}) {
    run_ranks(MeshOptions{.tp = tp, .pp = pp}, [&](const Mesh& mesh) {
      BatchSource source = source_of(mesh);
      source.next();
      expect_second_batch(source.next(), mesh.group(Axis::pp));
    });
  }
}

TEST(BatchSource, SharesSamplesThatTheProgramReads) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 2}}) {
    run_ranks(MeshOptions{.tp = tp, .pp = pp}, [&](const Mesh& mesh) {
      const Numbers numbers;
      const auto reads = [&, next = int64_t{0}]() mutable -> std::optional<Batch> {
        EXPECT_TRUE(reads_data(schema(), mesh));
        if (next == 4) return std::nullopt;
        Batch batch(schema(), 2);
        for (const int64_t i : {0, 1}) numbers.get(next++, batch.sample(i));
        return batch;
      };
      const BatchSource::Options options{
          .loader = {.sampler = {.total_samples = 6, .micro_batch_size = 2}, .num_workers = 0},
          .schema = schema()};
      BatchSource source(reads, options, mesh);
      source.next();
      expect_second_batch(source.next(), mesh.group(Axis::pp));
    });
  }
}

TEST(BatchSource, PadsTheSegmentsToAShapeThatOnlyGrows) {
  BatchSource source = source_of(Mesh());
  // Documents that start at token 0 are the sample's first: 3 segments, then 4.
  EXPECT_TRUE(at::equal(source.next()["cu_seqlens"], at::tensor({0, 8, 9, 16, 16}, at::kInt)));
  EXPECT_EQ(source.next()["cu_seqlens"].numel(), 5);
}

// Sample 0 is one document.
TEST(BatchSource, LeavesOutSegmentsThatAreWholeSamples) {
  for (const int64_t tp : {1, 2}) {
    run_ranks(MeshOptions{.tp = tp}, [](const Mesh& mesh) {
      const BatchSource::Options options{
          .loader = {.sampler = {.total_samples = 6, .micro_batch_size = 1}, .num_workers = 0},
          .schema = schema()};
      BatchSource source(std::make_shared<Numbers>(), options, mesh);
      EXPECT_FALSE(source.next()["cu_seqlens"].defined());
      source.next();
      EXPECT_TRUE(at::equal(source.next()["cu_seqlens"], at::tensor({0, 2, 8}, at::kInt)));
    });
  }
}

TEST(BatchSource, CutsSequencesOverContextParallelRanks) {
  run_ranks(MeshOptions{.cp = 2}, [](const Mesh& mesh) {
    BatchSource source = source_of(mesh);
    const MicroBatch batch = source.next();
    const bool first = mesh.group(Axis::cp).rank == 0;
    // One document: the first and the last quarter. Documents of 1 and 7 tokens.
    const at::Tensor one = first ? row({0, 1, 6, 7}) : row({2, 3, 4, 5});
    const at::Tensor two = first ? row({0, 1, 2, 7}) : row({3, 4, 5, 6});
    EXPECT_TRUE(at::equal(batch["sequence_index"], at::stack({one, two}, 1)));
    EXPECT_TRUE(at::equal(batch["tokens"], at::stack({one, two + 100}, 1)));
    EXPECT_EQ(batch["weights"].sizes(), (at::IntArrayRef{4, 2, 3}));
    EXPECT_EQ(batch.context_parallel.size(), 2);
    EXPECT_EQ(batch["cu_seqlens"][-1].item<int32_t>(), 16) << "segments are those of the whole sequences";
  });
}

// Samples of 8, 1, 2, 3, 4 and 5 tokens, on every rank.
TEST(BatchSource, RemovesThePadding) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {2, 3}}) {
    run_ranks(MeshOptions{.tp = tp, .pp = pp}, [](const Mesh& mesh) {
      const BatchSource::Options options{
          .loader = {.sampler = {.total_samples = 6, .micro_batch_size = 6}, .num_workers = 0},
          .schema = schema()};
      BatchSource source(std::make_shared<Numbers>(), options, mesh);
      const MicroBatch batch = source.next(Padding::removed);
      EXPECT_EQ(batch.padded_length, sample_length);
      if (const at::Tensor& tokens = batch["tokens"]; tokens.defined()) {
        EXPECT_EQ(tokens.sizes(), (at::IntArrayRef{32, 1}));
        EXPECT_TRUE(at::equal(tokens.narrow(0, 7, 5).squeeze(1), row({7, 100, 200, 201, 300})));
      }
      if (batch["weights"].defined()) {
        EXPECT_EQ(batch["weights"].sizes(), (at::IntArrayRef{32, 1, 3}));
        EXPECT_EQ(batch["weights"][10][0][2].item<float>(), 12.0F);
      }
      EXPECT_TRUE(at::equal(batch["sequence_index"].narrow(0, 7, 5).squeeze(1), row({7, 0, 0, 1, 0})));
      EXPECT_TRUE(at::equal(batch["row_starts"], row({0, 8, 9, 11, 14, 18})));
      EXPECT_TRUE(
          at::equal(batch["cu_seqlens"].slice(0, 0, 7), at::tensor({0, 8, 9, 11, 14, 18, 23}, at::kInt)));
      EXPECT_EQ(batch["kind"].sizes(), (at::IntArrayRef{6, 2}));
      EXPECT_EQ(batch.sample_ids_B.numel(), 6);
    });
  }
}

TEST(BatchSource, ReportsTheEndOfTheData) {
  BatchSource source = source_of(Mesh());
  for (int i = 0; i < 3; ++i) source.next();
  EXPECT_THROW(source.next(), UserError);
}

}  // namespace
}  // namespace teratron
