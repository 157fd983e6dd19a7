// What it costs ranks to find out who holds which tensors, and that replicas have the same buckets, counted
// for up to 4,096 ranks (docs/scaling.md).
#include <bit>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "teratron/optim/bucket_layout.h"
#include "teratron/optim/replica_agreement.h"
#include "teratron/testing/scale/scale_costs.h"

namespace teratron {
namespace {

constexpr int64_t tensor_ranks = 8, layers_of_stage = 2;

/// The tensors of a transformer. Its embedding is tied over the first and the last stage.
std::vector<HeldTensor> tensors_of(const HolderPlace& place, int64_t stages) {
  std::vector<HeldTensor> tensors;
  if (place.stage == 0 || place.stage == stages - 1)
    tensors.push_back(
        {fmt::format("{} embedding.word_embeddings.weight", place.pipeline), "[4000, 8192] BFloat16"});
  for (int64_t layer = place.stage * layers_of_stage; layer < (place.stage + 1) * layers_of_stage; ++layer) {
    for (const char* name : {"self_attention.linear_qkv.weight", "self_attention.linear_proj.weight",
                             "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"})
      tensors.push_back(
          {fmt::format("{} decoder.layers.{}.{}", place.pipeline, layer, name), "[8192, 1024] BFloat16"});
    for (const char* name : {"input_layernorm.weight", "input_layernorm.bias", "pre_mlp_layernorm.weight",
                             "pre_mlp_layernorm.bias"})
      tensors.push_back({fmt::format("0 decoder.layers.{}.{}", layer, name), "[8192] BFloat16"});
  }
  return tensors;
}

/// The group of all ranks of one replica of the model: tensor-parallel ranks, then stages.
void find_all(HostGroup& group) {
  const int64_t stages = group.size() / tensor_ranks;
  const HolderPlace place{group.rank(), group.rank() / tensor_ranks, group.rank() % tensor_ranks};
  const std::vector<HeldTensor> mine = tensors_of(place, stages);
  const FoundHolders found = find_holders(group, place, mine);
  EXPECT_EQ(found.problem, "");
  ASSERT_EQ(found.of.size(), mine.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    const bool is_tied = mine[i].name.find("embedding") != std::string::npos;
    const bool is_whole = mine[i].name.find("layernorm") != std::string::npos;
    const std::set<int64_t> everywhere = {0, stages - 1}, here = {place.stage};
    EXPECT_EQ(found.of[i].stages, is_tied ? everywhere : here) << mine[i].name;
    EXPECT_EQ(found.of[i].first, is_tied ? place.stage == 0 : !is_whole || place.pipeline == 0)
        << mine[i].name;
  }
}

TEST(Scale, HoldersOfTensorsAreFoundInLogarithmicRounds) {
  const ScaleCosts costs = count_costs("find_holders", find_all);
  for (const JobCosts& job : costs.jobs) {
    const int64_t rounds = std::bit_width(static_cast<uint64_t>(job.ranks - 1));
    EXPECT_EQ(job.messages, 2 * job.ranks * rounds);
    EXPECT_EQ(job.most.messages, 2 * rounds);
    EXPECT_EQ(job.most.rounds, 2 * rounds);
  }
  EXPECT_LT(costs.of_messages, 1.25);
  EXPECT_LT(costs.of_bytes, 1.3);  // n log2(n) over these sizes: 1.2; fewer tensors share a message
  EXPECT_LT(costs.of_most_bytes, 0.35);
}

TEST(Scale, BucketsAreComparedInOneSweep) {
  std::vector<BucketItem> items;
  for (int64_t i = 0; i < 300; ++i)
    items.push_back({fmt::format("decoder.layers.{}.mlp.linear_fc1.weight", i), 8192});
  const std::vector<std::string> buckets =
      describe_buckets(items, lay_out(items, {.bucket_size = 100'000, .block = 64}));
  EXPECT_GT(buckets.size(), 20U);
  const ScaleCosts costs = expect_sweeps("find_different_bucket", 1, [&](HostGroup& group) {
    EXPECT_EQ(find_different_bucket(group, group.rank(), buckets), "");
  });
  EXPECT_LT(costs.of_bytes, 1.05);
  EXPECT_EQ(costs.jobs.front().most.received, costs.jobs.back().most.received);
}

}  // namespace
}  // namespace teratron
