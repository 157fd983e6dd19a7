// BERT in every layout against one rank: losses and every gradient.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/models/bert/bert.h"
#include "teratron/testing/bert_models.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

class BertLayouts : public testing::TestWithParam<Layout> {};

TEST_P(BertLayouts, MatchOneRank) {
  for (const BertVariant& variant : bert_variants()) {
    SCOPED_TRACE(variant.name + ", " + to_string(GetParam()));
    const TestModel model = bert_model(variant.config);
    expect_same(gradients_of(model, GetParam(), at::kDouble), gradients_of(model, {}, at::kDouble), 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, BertLayouts,
                         testing::Values(Layout{.tp = 2},
                                         Layout{.tp = 2, .microbatches = 2, .sequence_parallel = true},
                                         Layout{.dp = 4}, Layout{.pp = 2, .microbatches = 4},
                                         Layout{.pp = 2, .chunks = 2, .microbatches = 4},
                                         Layout{.pp = 4, .stages = "E|tt|tt|L", .microbatches = 2},
                                         every_axis,
                                         Layout{.tp = 2, .sequence_parallel = true, .late = true}));

// Context parallelism: padding, of which ranks have parts, and rows without any.
class BertContextLayouts : public testing::TestWithParam<Layout> {};

TEST_P(BertContextLayouts, MatchOneRank) {
  for (const ContextParallelComm comm :
       {ContextParallelComm::p2p, ContextParallelComm::all_gather, ContextParallelComm::a2a}) {
    for (const BertVariant& variant : bert_variants()) {
      BertConfig config = variant.config;
      config.context_parallel_comm.assign(static_cast<size_t>(config.layers), comm);
      if (comm == ContextParallelComm::a2a && config.query_groups % (GetParam().tp * GetParam().cp) != 0)
        continue;
      for (const bool padded : {true, false}) {
        SCOPED_TRACE(fmt::format("{}, {}, comm {}, {}", variant.name, to_string(GetParam()),
                                 static_cast<int>(comm), padded ? "padding" : "no padding"));
        TestModel model = bert_model(config);
        if (!padded) {
          model.batch = [padding = model.batch](int64_t step, FlatRange samples) {
            MicroBatch batch = padding(step, samples);
            batch.tensors.set("cu_seqlens", {});
            return batch;
          };
        }
        expect_same(gradients_of(model, GetParam(), at::kDouble), gradients_of(model, {}, at::kDouble),
                    1e-10);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, BertContextLayouts,
    testing::Values(Layout{.cp = 2}, Layout{.cp = 4, .sharded = true}, Layout{.tp = 2, .cp = 2},
                    Layout{.tp = 2, .cp = 2, .microbatches = 2, .sequence_parallel = true},
                    Layout{.pp = 2, .cp = 2, .microbatches = 4},
                    Layout{.tp = 2,
                           .pp = 2,
                           .cp = 2,
                           .dp = 2,
                           .microbatches = 2,
                           .sequence_parallel = true,
                           .sharded = true,
                           .overlap_param_gather = true}));

// Without padding, in any layout: the losses and gradients of one rank with padding.
class PackedBertLayouts : public testing::TestWithParam<Layout> {};

TEST_P(PackedBertLayouts, MatchPaddedRows) {
  for (const BertVariant& variant : bert_variants()) {
    SCOPED_TRACE(variant.name + ", " + to_string(GetParam()));
    const TestModel packed = packed_bert_model(variant.config, GetParam().tp);
    ASSERT_GT(packed.batch(1, {0, test_samples}).padded_length, 0);
    expect_same(gradients_of(packed, GetParam(), at::kDouble),
                gradients_of(bert_model(variant.config), {}, at::kDouble), 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, PackedBertLayouts,
                         testing::Values(Layout{}, Layout{.tp = 2},
                                         Layout{.tp = 2, .microbatches = 2, .sequence_parallel = true},
                                         Layout{.dp = 4}, Layout{.pp = 2, .microbatches = 4},
                                         Layout{.pp = 2, .chunks = 2, .microbatches = 4},
                                         Layout{.pp = 4, .stages = "E|tt|tt|L", .microbatches = 2},
                                         every_axis));

struct OneBert {
  explicit OneBert(const BertConfig& config)
      : parameters({.dtype = at::kDouble, .seed = 3}),
        model(config, {parameters, {.layers = config.layers}, {}}) {}
  ParameterSet parameters;
  Bert model;
};

TEST(Bert, PaddingInfluencesNothing) {
  const BertConfig config = small_bert_config();
  OneBert one(config);
  const auto losses = [&](const MicroBatch& batch) {
    const std::vector<LossTerm> terms = one.model.losses(one.model.forward({}, batch, nullptr), batch);
    return at::stack({terms[0].sum, terms[1].sum});
  };
  const MicroBatch batch = bert_batch(config, 1, {0, test_samples});
  const at::Tensor expected = losses(batch);
  // Other tokens and types in the second segment of each row.
  const at::Tensor starts = batch["cu_seqlens"].to(at::kLong);
  MicroBatch changed = batch;
  at::Tensor padding_BS = at::zeros({test_samples, 8}, at::kLong);
  for (int64_t i = 0; i + 1 < starts.size(0); ++i) {
    const int64_t first = starts[i].item<int64_t>(), end = starts[i + 1].item<int64_t>();
    if (first % 8 != 0) padding_BS.view(-1).narrow(0, first, end - first).fill_(1);
  }
  ASSERT_GT(padding_BS.sum().item<int64_t>(), 0);
  changed.tensors.set("tokens", (batch["tokens"] + padding_BS.t()).remainder(config.vocabulary));
  changed.tensors.set("types", (batch["types"] + padding_BS.t()).remainder(2));
  EXPECT_TRUE(at::equal(losses(changed), expected));
  changed.tensors.set("tokens", (batch["tokens"] + 1).remainder(config.vocabulary));
  EXPECT_FALSE(at::equal(losses(changed), expected));
}

// The head over the masked positions gives the loss of all positions with a mask.
TEST(Bert, PredictionsAreThoseOfAllPositions) {
  const BertConfig config = small_bert_config();
  OneBert one(config);
  const MicroBatch batch = bert_batch(config, 1, {0, test_samples});
  const Activations output = one.model.forward({}, batch, nullptr);
  const at::Tensor logits_SBV = one.model.logits(output).narrow(2, 0, config.vocabulary);
  const at::Tensor positions_PB = batch["masked_positions"].t();
  const at::Tensor index =
      positions_PB.unsqueeze(2).expand({positions_PB.size(0), test_samples, config.vocabulary});
  const at::Tensor losses =
      at::cross_entropy_loss(logits_SBV.gather(0, index).flatten(0, 1),
                             batch["masked_labels"].t().reshape(-1), {}, at::Reduction::None);
  const at::Tensor mask = batch["masked_loss_mask"].t().reshape(-1);
  const double expected = ((losses * mask).sum() / mask.sum()).item<double>();
  EXPECT_NEAR(one.model.losses(output, batch)[0].sum.item<double>(), expected, 1e-12);
}

}  // namespace
}  // namespace teratron
