#include "teratron/data/data_loader.h"

#include <atomic>
#include <set>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/models/gpt/data/gpt_builder.h"
#include "teratron/models/gpt/data/mock_gpt_dataset.h"
#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

using nlohmann::json;
using testing::fixture;

json pass_of(BatchSampler& sampler, size_t limit) {
  json batches = json::array();
  while (batches.size() < limit) {
    const auto batch = sampler.next();
    if (!batch) break;
    batches.push_back(*batch);
  }
  return batches;
}

BatchSamplerOptions sampler_options(const json& c) {
  BatchSamplerOptions options{.total_samples = c["total"], .dp_rank = c["dp_rank"], .dp_size = c["dp_size"]};
  options.consumed_samples = c.value("consumed", 0);
  options.micro_batch_size = c.value("micro", 1);
  options.data_sharding = c.value("data_sharding", true);
  options.drop_last = c.value("drop_last", true);
  options.kind = c["sampler"] == "random"            ? SamplerKind::cyclic
                 : c["sampler"] == "full_validation" ? SamplerKind::full_validation
                                                     : SamplerKind::single;
  return options;
}

TEST(BatchSampler, MatchesMegatron) {
  int checked = 0;
  for (const json& c : testing::read_json(fixture("samplers/samplers.json"))) {
    SCOPED_TRACE(c.dump().substr(0, 150));
    const auto sampler = build_batch_sampler(sampler_options(c));
    const size_t limit = c["sampler"] == "random" ? 40 : c["sampler"] == "sequential" ? 20 : 1000;
    const json first_pass = pass_of(*sampler, limit);
    EXPECT_EQ(first_pass, c["batches"]);
    if (c.contains("next")) {
      while (first_pass.size() == limit && sampler->next()) {  // an unfinished pass
      }
      EXPECT_EQ(pass_of(*sampler, c["next"].size()), c["next"]);
    }
    if (c.contains("len")) {
      EXPECT_LE(c["batches"].size(), c["len"].get<size_t>());
    }
    ++checked;
  }
  EXPECT_EQ(checked, 72);
}

TEST(BatchSampler, CyclicNeedsWholeSteps) {
  BatchSamplerOptions options{
      .kind = SamplerKind::cyclic, .total_samples = 7, .micro_batch_size = 4, .dp_size = 2};
  EXPECT_THROW(build_batch_sampler(options), UserError);
  options.total_samples = 20;
  options.consumed_samples = 4;
  EXPECT_THROW(build_batch_sampler(options), UserError);
}

// The micro-batches of all ranks in the first steps; an empty one marks the end of an epoch.
std::vector<std::vector<std::vector<int64_t>>> steps_of_ranks(BatchSamplerOptions options, int steps) {
  std::vector<std::vector<std::vector<int64_t>>> ranks;
  for (options.dp_rank = 0; options.dp_rank < options.dp_size; ++options.dp_rank) {
    const auto sampler = build_batch_sampler(options);
    auto& micro_batches = ranks.emplace_back();
    for (int i = 0; i < steps; ++i) micro_batches.push_back(sampler->next().value_or(std::vector<int64_t>{}));
  }
  return ranks;
}

void expect_epochs_in_step(const BatchSamplerOptions& options) {
  const int64_t step = options.micro_batch_size * options.dp_size;
  const int64_t whole_steps = options.total_samples / step;
  const int calls = static_cast<int>(3 * (whole_steps + 1));
  const auto ranks = steps_of_ranks(options, calls);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (const auto& micro_batches : ranks) {
      const auto first = micro_batches.begin() + epoch * (whole_steps + 1);
      for (auto micro = first; micro != first + whole_steps; ++micro) {
        EXPECT_EQ(std::ssize(*micro), options.micro_batch_size);
        seen.insert(micro->begin(), micro->end());
      }
      EXPECT_TRUE(first[whole_steps].empty()) << "all ranks leave the epoch together";
    }
    EXPECT_EQ(std::ssize(seen), whole_steps * step) << "each sample once";
  }
  for (int64_t done = 0; done < 2 * whole_steps; ++done) {
    BatchSamplerOptions later = options;
    later.consumed_samples = done * step;
    const int64_t skipped = done + done / whole_steps;  // calls, with the ends of epochs
    const auto resumed = steps_of_ranks(later, calls - static_cast<int>(skipped));
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      EXPECT_EQ(resumed[rank], std::vector(ranks[rank].begin() + skipped, ranks[rank].end())) << done;
  }
}

TEST(BatchSampler, CyclicRanksLeaveAnEpochTogetherAndResumeExactly) {
  for (const bool sharding : {false, true}) {
    for (int64_t total = 6; total < 32; ++total) {
      for (const auto& [micro, ranks] : {std::pair<int64_t, int64_t>{1, 2}, {1, 3}, {2, 3}, {3, 2}, {1, 4}}) {
        SCOPED_TRACE(fmt::format("{} samples, {} x {}, sharding {}", total, micro, ranks, sharding));
        expect_epochs_in_step({.kind = SamplerKind::cyclic,
                               .total_samples = total,
                               .micro_batch_size = micro,
                               .dp_size = ranks,
                               .data_sharding = sharding});
      }
    }
  }
}

const BatchSchema plain_schema = gpt_schema(6, {});

std::shared_ptr<const Dataset> mock(int64_t samples) {
  return std::make_shared<MockGPTDataset>(
      MockGPTDataset::Options{.samples = samples, .sequence_length = 6, .vocab_size = 1000});
}

std::vector<std::vector<int64_t>> tokens_of(DataLoader& loader, size_t limit) {
  std::vector<std::vector<int64_t>> all;
  while (all.size() < limit) {
    const auto batch = loader.next();
    if (!batch) break;
    const std::span<const int64_t> tokens = batch->values<int64_t>("tokens");
    EXPECT_EQ(tokens.size(), static_cast<size_t>(batch->samples() * 6));
    EXPECT_EQ(batch->values<float>("loss_mask").size(), tokens.size());
    all.emplace_back(tokens.begin(), tokens.end());
  }
  return all;
}

TEST(DataLoader, SameBatchesForAnyNumberOfWorkers) {
  for (const auto kind : {SamplerKind::single, SamplerKind::cyclic}) {
    DataLoaderOptions options{.sampler = {.kind = kind, .micro_batch_size = 3, .dp_rank = 1, .dp_size = 2},
                              .num_workers = 0};
    DataLoader serial(mock(100), plain_schema, options);
    const auto expected = tokens_of(serial, 60);
    EXPECT_EQ(expected.size(), kind == SamplerKind::single ? 16u : 60u);
    for (const int workers : {1, 2, 5}) {
      options.num_workers = workers;
      DataLoader loader(mock(100), plain_schema, options);
      EXPECT_EQ(tokens_of(loader, 60), expected);
      if (kind == SamplerKind::single) {
        EXPECT_FALSE(loader.next());
        EXPECT_FALSE(loader.next());
      }
    }
  }
}

TEST(DataLoader, ResumeFromConsumedSamples) {
  for (const auto kind : {SamplerKind::single, SamplerKind::cyclic}) {
    DataLoaderOptions options{.sampler = {.kind = kind, .micro_batch_size = 2, .dp_rank = 2, .dp_size = 3}};
    DataLoader whole(mock(200), plain_schema, options);
    const auto expected = tokens_of(whole, 30);
    for (const int64_t steps : {1, 7, 29}) {
      options.sampler.consumed_samples = steps * 6;
      DataLoader resumed(mock(200), plain_schema, options);
      const auto rest = tokens_of(resumed, 30 - steps);
      EXPECT_EQ(rest, std::vector(expected.begin() + steps, expected.end()));
    }
  }
}

TEST(DataLoader, ReturnsSegmentStarts) {
  GPTDataOptions options{
      .sources = {.data_path = {fixture("corpora/wide").string()}, .split = "1", .samples = {50, 0, 0}},
      .sequence_length = 8};
  options.masks = {.eod_id = 99, .reset_attention_mask = true, .vocab_size = 100};
  const auto train = build_gpt_datasets(options).train;
  DataLoader loader(train, gpt_schema(8, options.masks), {.sampler = {.micro_batch_size = 4}});
  bool any = false;
  for (int i = 0; i < 12; ++i) {
    const auto batch = loader.next();
    ASSERT_TRUE(batch);
    const std::span<const int32_t> starts = batch->values<int32_t>("segment_start");
    const std::span<const int64_t> tokens = batch->values<int64_t>("tokens");
    for (size_t t = 0; t < starts.size(); ++t) {
      const auto start = static_cast<size_t>(starts[t]);
      const size_t row = t / 8 * 8;
      EXPECT_LE(row + start, t);
      if (start > 0) {
        EXPECT_EQ(tokens[row + start - 1], 99);
      }
      any = any || start > 0;
    }
  }
  EXPECT_TRUE(any);
}

class FailingDataset : public MockGPTDataset {
 public:
  FailingDataset() : MockGPTDataset({.samples = 100, .sequence_length = 4, .vocab_size = 10}) {}
  void get(int64_t i, const Sample& sample) const override {
    if (i == 13) throw data_error({.what = "sample 13 is bad"});
    MockGPTDataset::get(i, sample);
  }
};

TEST(DataLoader, ErrorsAreThrownInPlaceOfTheirBatch) {
  for (const int workers : {0, 1, 3}) {
    DataLoader loader(std::make_shared<FailingDataset>(), gpt_schema(4, {}),
                      {.sampler = {.micro_batch_size = 2}, .num_workers = workers});
    for (int i = 0; i < 6; ++i) EXPECT_TRUE(loader.next());
    EXPECT_THROW(loader.next(), UserError);
    EXPECT_TRUE(loader.next());
  }
}

TEST(DataLoader, MayBeDestroyedAtAnyTime) {
  for (int taken = 0; taken < 4; ++taken) {
    DataLoader loader(mock(1000), plain_schema,
                      {.sampler = {.micro_batch_size = 2}, .num_workers = 3, .prefetch_factor = 4});
    for (int i = 0; i < taken; ++i) loader.next();
  }
}

}  // namespace
}  // namespace teratron
