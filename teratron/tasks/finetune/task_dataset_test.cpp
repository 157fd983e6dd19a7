#include "teratron/tasks/finetune/task_dataset.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "teratron/data/torch_randperm.h"

namespace teratron {
namespace {

// torch.utils.data.DistributedSampler with set_epoch(seed + epoch), in batches.
std::vector<int64_t> of_replica(const TaskOrderOptions& options, int64_t replica, int64_t epoch) {
  std::vector<int64_t> all = torch_randperm(options.samples, *options.seed + static_cast<uint64_t>(epoch));
  const size_t padded = (all.size() + options.replicas - 1) / options.replicas * options.replicas;
  for (size_t i = 0; all.size() < padded; ++i) all.push_back(all[i]);
  std::vector<int64_t> own;
  for (auto i = static_cast<size_t>(replica); i < all.size(); i += options.replicas) own.push_back(all[i]);
  return own;
}

TEST(TaskOrder, IsThatOfDistributedSampler) {
  for (const int64_t samples : {7, 12, 40, 41}) {
    for (const int64_t replicas : {1, 2, 3}) {
      for (const bool keep_last : {false, true}) {
        const TaskOrderOptions options{
            .samples = samples, .micro_batch = 2, .replicas = replicas, .keep_last = keep_last, .seed = 5};
        const TaskOrder order(options);
        const int64_t each = (samples + replicas - 1) / replicas;
        EXPECT_EQ(order.batches(), keep_last ? (each + 1) / 2 : each / 2);
        for (int64_t epoch = 0; epoch < 2; ++epoch) {
          for (int64_t replica = 0; replica < replicas; ++replica) {
            const std::vector<int64_t> expected = of_replica(options, replica, epoch);
            for (int64_t i = 0; i < order.batches() * 2; ++i) {
              const int64_t place = epoch * order.places() + (i / 2 * replicas + replica) * 2 + i % 2;
              const auto wanted = i < each ? std::optional(expected.at(i)) : std::nullopt;
              EXPECT_EQ(order.at(place), wanted) << samples << " " << replicas << " " << i;
            }
          }
        }
      }
    }
  }
}

TEST(TaskOrder, WithoutAShuffleTakesEachSampleOnce) {
  const TaskOrder order({.samples = 7, .micro_batch = 2, .replicas = 2});
  EXPECT_EQ(order.places(), 8);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(order.at(i), i < 7 ? std::optional(i) : std::nullopt);
}

}  // namespace
}  // namespace teratron
