// Positions shared by all samples have stride 0 along the batch, so that embeddings are looked up once.
#include "teratron/train/batch_source.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace teratron {
namespace {

constexpr int64_t length = 5;

/// Samples with positions 0, 1, ...; those in `resets` restart after two tokens.
class Counting : public Dataset {
 public:
  explicit Counting(std::vector<int64_t> resets) : resets_(std::move(resets)) {}
  int64_t size() const override { return 6; }
  int64_t sequence_length() const override { return length; }
  std::string describe() const override { return "counting"; }
  void get(int64_t i, Sample& sample) const override {
    sample.tokens.assign(length, i);
    sample.labels = sample.tokens;
    sample.loss_mask.assign(length, 1.0F);
    sample.segment_start.assign(length, 0);
    sample.position_ids.resize(length);
    std::iota(sample.position_ids.begin(), sample.position_ids.end(), 0);
    if (std::find(resets_.begin(), resets_.end(), i) == resets_.end()) return;
    std::iota(sample.position_ids.begin() + 2, sample.position_ids.end(), 0);
  }

 private:
  std::vector<int64_t> resets_;
};

struct Expected {
  int64_t samples;
  bool shared;
};

void expect_positions(const std::vector<int64_t>& resets, const std::vector<Expected>& batches) {
  const BatchSource::Options options{
      .loader = {.sampler = {.total_samples = 6, .micro_batch_size = 4, .drop_last = false},
                 .num_workers = 0},
      .sequence_length = length};
  const auto dataset = std::make_shared<Counting>(resets);
  BatchSource source(dataset, options, Mesh());
  int64_t first = 0;
  for (const auto& [samples, shared] : batches) {
    const MicroBatch batch = source.next();
    ASSERT_EQ(batch.tokens_SB.sizes(), (at::IntArrayRef{length, samples}));
    ASSERT_EQ(batch.positions_SB.sizes(), batch.tokens_SB.sizes());
    EXPECT_EQ(batch.positions_SB.stride(1) == 0, shared);
    for (int64_t b = 0; b < samples; ++b) {
      Sample sample;
      dataset->get(first + b, sample);
      EXPECT_TRUE(at::equal(batch.positions_SB.select(1, b), at::tensor(sample.position_ids)));
    }
    first += samples;
  }
}

TEST(BatchSource, SharesConsecutivePositions) {
  expect_positions({}, {{4, true}, {2, false}});  // smaller than the shared positions
  expect_positions({2}, {{4, false}});
  expect_positions({5}, {{4, true}, {2, false}});
}

}  // namespace
}  // namespace teratron
