// T5 in every layout against one rank: losses and every gradient.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/models/t5/t5.h"
#include "teratron/testing/models.h"
#include "teratron/testing/t5_models.h"

namespace teratron {
namespace {

class T5Layouts : public testing::TestWithParam<Layout> {};

TEST_P(T5Layouts, MatchOneRank) {
  for (const T5Variant& variant : t5_variants()) {
    SCOPED_TRACE(variant.name + ", " + to_string(GetParam()));
    const TestModel model = t5_model(variant.config);
    expect_same(gradients_of(model, GetParam(), at::kDouble), gradients_of(model, {}, at::kDouble), 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, T5Layouts,
    testing::Values(Layout{.tp = 2}, Layout{.tp = 2, .microbatches = 2, .sequence_parallel = true},
                    Layout{.dp = 4}, Layout{.pp = 2, .split = 1, .microbatches = 4},
                    Layout{.pp = 4, .split = 2, .microbatches = 4},
                    Layout{.pp = 3, .split = 1, .microbatches = 2, .sharded = true},
                    Layout{.pp = 3, .stages = "Et|tttt|tL", .microbatches = 4, .overlap_p2p = false},
                    Layout{.pp = 4, .stages = "E|tttt|tt|L", .microbatches = 2},
                    Layout{.pp = 2, .microbatches = 2},
                    Layout{.tp = 2,
                           .pp = 2,
                           .dp = 2,
                           .split = 1,
                           .microbatches = 2,
                           .sequence_parallel = true,
                           .sharded = true,
                           .overlap_param_gather = true},
                    Layout{.tp = 2, .sequence_parallel = true, .late = true}));

// Context parallelism cuts the sequences of both towers.
class T5ContextLayouts : public testing::TestWithParam<Layout> {};

TEST_P(T5ContextLayouts, MatchOneRank) {
  for (const ContextParallelComm comm :
       {ContextParallelComm::p2p, ContextParallelComm::all_gather, ContextParallelComm::a2a}) {
    for (const T5Variant& variant : t5_variants()) {
      T5Config config = variant.config;
      for (TransformerConfig* const tower : {&config.encoder, &config.decoder})
        tower->context_parallel_comm.assign(static_cast<size_t>(tower->layers), comm);
      if (comm == ContextParallelComm::a2a &&
          config.encoder.query_groups % (GetParam().tp * GetParam().cp) != 0)
        continue;
      SCOPED_TRACE(
          fmt::format("{}, {}, comm {}", variant.name, to_string(GetParam()), static_cast<int>(comm)));
      const TestModel model = t5_model(config);
      expect_same(gradients_of(model, GetParam(), at::kDouble), gradients_of(model, {}, at::kDouble), 1e-10);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, T5ContextLayouts,
                         testing::Values(Layout{.cp = 2}, Layout{.tp = 2, .cp = 2},
                                         Layout{
                                             .tp = 2, .cp = 2, .microbatches = 2, .sequence_parallel = true},
                                         Layout{.pp = 2, .cp = 2, .split = 1, .microbatches = 4},
                                         Layout{.pp = 3, .cp = 2, .stages = "Et|tttt|tL", .microbatches = 4},
                                         Layout{.tp = 2,
                                                .pp = 2,
                                                .cp = 2,
                                                .dp = 2,
                                                .split = 1,
                                                .microbatches = 2,
                                                .sequence_parallel = true,
                                                .sharded = true,
                                                .overlap_param_gather = true}));

struct OneT5 {
  explicit OneT5(const T5Config& config)
      : parameters({.dtype = at::kDouble, .seed = 3}),
        model(config, {parameters, {.layers = config.encoder.layers + config.decoder.layers}, {}}) {}
  ParameterSet parameters;
  T5 model;
};

TEST(T5, PaddingOfTheEncoderInfluencesNothing) {
  const T5Config config = small_t5_config();
  OneT5 one(config);
  const auto losses = [&](const MicroBatch& batch) {
    return one.model.token_losses(one.model.forward({}, batch, nullptr), batch);
  };
  const MicroBatch batch = t5_batch(config, 1, {0, test_samples});
  const at::Tensor expected = losses(batch);
  const at::Tensor padding_SB = batch["encoder_index"].ge(batch["encoder_length"].t());
  ASSERT_GT(padding_SB.sum().item<int64_t>(), 0);
  MicroBatch changed = batch;
  const auto with = [&](const at::Tensor& added_SB) {
    changed.tensors.set("encoder_tokens", (batch["encoder_tokens"] + added_SB).remainder(config.vocabulary));
    return losses(changed);
  };
  EXPECT_TRUE(at::equal(with(padding_SB.to(at::kLong)), expected));
  EXPECT_FALSE(at::equal(with(padding_SB.logical_not().to(at::kLong)), expected));
}

TEST(T5, DecoderSeesNoLaterTokens) {
  const T5Config config = small_t5_config();
  OneT5 one(config);
  const MicroBatch batch = t5_batch(config, 1, {0, test_samples});
  const at::Tensor expected = one.model.logits(one.model.forward({}, batch, nullptr));
  MicroBatch changed = batch;
  const at::Tensor later_SB = batch["decoder_index"].ge(5).to(at::kLong);
  changed.tensors.set("decoder_tokens", (batch["decoder_tokens"] + later_SB).remainder(config.vocabulary));
  const at::Tensor logits = one.model.logits(one.model.forward({}, changed, nullptr));
  EXPECT_TRUE(at::allclose(logits.narrow(0, 0, 5), expected.narrow(0, 0, 5), 1e-13, 1e-13));
  EXPECT_FALSE(at::allclose(logits.narrow(0, 5, 3), expected.narrow(0, 5, 3)));
}

// Encoder and decoder can be called apart.
TEST(T5, EncodesOnceAndDecodes) {
  const T5Config config = small_t5_config();
  OneT5 one(config);
  const MicroBatch batch = t5_batch(config, 1, {0, test_samples});
  const at::Tensor memory_SBH = one.model.encode({}, batch);
  const at::Tensor decoded_SBH = one.model.decode({}, memory_SBH, batch, nullptr);
  EXPECT_TRUE(at::equal(decoded_SBH, one.model.forward({}, batch, nullptr)["decoder_hidden"]));
}

}  // namespace
}  // namespace teratron
