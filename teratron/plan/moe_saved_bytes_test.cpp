// The bytes that the operators of experts declare against those that built models allocate.
#include <mutex>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/models/gpt/gpt_operators.h"
#include "teratron/plan/activation_memory.h"
#include "teratron/testing/memory_meter.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

struct MoeBytesCase {
  const char* name;
  std::function<void(MoeOptions&)> change = [](MoeOptions&) {};
  at::ScalarType dtype = at::kFloat;
  RecomputeConfig recompute = {};
  std::optional<Fp8Options> fp8 = {};
};

GPTConfig moe_bytes_config(const MoeBytesCase& c) {
  GPTConfig config = llama_config({.hidden = 64,
                                   .ffn_hidden = 160,
                                   .heads = 4,
                                   .vocabulary = 250,
                                   .padded_vocabulary = 256,
                                   .positions = 128});
  config.layers = 4;
  config.recompute = c.recompute;
  config.experts.layers = {1, 0, 1, 1};
  MoeOptions& moe = config.experts.options;
  moe.router.experts = moe.experts.experts = 8;
  moe.experts.ffn_hidden = 96;
  moe.router.aux_loss = 0.1;
  c.change(moe);
  return config;
}

void use_shared_experts(MoeOptions& moe, bool gate) {
  moe.shared = {.mlp = {.ffn_hidden = 48}, .gate = gate};
}

const Fp8Options fp8_without_dw{.weight_gradients = false};

void use_gated_experts(MoeOptions& moe) {
  use_shared_experts(moe, true);
}

const std::vector<MoeBytesCase>& moe_bytes_cases() {
  static const std::vector<MoeBytesCase> all = {
      {"mixtral"},
      {"without losses", [](MoeOptions& m) { m.router.aux_loss = 0.0; }},
      {"every loss",
       [](MoeOptions& m) {
         m.router.routing = {.topk = 3, .pre_softmax = true, .scaling = 1.5};
         m.router.seq_aux_loss = m.router.z_loss = 0.1;
       }},
      {"deepseek",
       [](MoeOptions& m) {
         m.router.routing = {.topk = 4, .score = RouterScore::sigmoid, .groups = 4, .group_topk = 2};
         m.router.expert_bias = true;
         use_shared_experts(m, false);
       }},
      {"sqrtsoftplus",
       [](MoeOptions& m) {
         m.router.routing.score = RouterScore::sqrtsoftplus;
         m.router.z_loss = 0.1;
       }},
      {"qwen2", use_gated_experts},
      {"sinkhorn",
       [](MoeOptions& m) {
         m.router.sinkhorn = true;
         m.router.aux_loss = 0.0;
       }},
      {"jitter",
       [](MoeOptions& m) {
         m.router.jitter = 0.1;
         use_shared_experts(m, false);
       }},
      {"drops", [](MoeOptions& m) { m.router.capacity_factor = 0.75; }},
      {"padding",
       [](MoeOptions& m) {
         m.router.capacity_factor = 1.5;
         m.router.pad_to_capacity = true;
       }},
      {"bf16", [](MoeOptions&) {}, at::kBFloat16},
      {"bf16, losses of fp32 logits",
       [](MoeOptions& m) {
         m.router.dtype = at::kFloat;
         m.router.z_loss = 0.1;
         use_shared_experts(m, true);
       },
       at::kBFloat16},
      {"layers of experts recomputed",
       [](MoeOptions& m) {
         m.recompute = true;
         use_shared_experts(m, true);
       }},
      {"all layers recomputed",
       [](MoeOptions& m) { use_shared_experts(m, false); },
       at::kFloat,
       {.granularity = RecomputeConfig::Granularity::layers, .layers = 2}},
      {"FP8", use_gated_experts, at::kFloat, {}, Fp8Options{}},
      {"FP8 without its weight gradients", use_gated_experts, at::kFloat, {}, fp8_without_dw},
  };
  return all;
}

struct MoeBytes {
  double saved = 0.0, peak = 0.0;
};

struct MoePrecision {
  at::ScalarType dtype = at::kFloat;
  std::optional<Fp8Options> fp8 = {};
};

MoeBytes allocated_with_experts(const GPTConfig& config, const MoePrecision& precision,
                                const TensorParallel& parallel, const Mesh& mesh) {
  ParameterSet parameters({.dtype = precision.dtype, .seed = 3, .fp8 = precision.fp8});
  GPT model(parameters, config, {.layers = config.layers}, parallel, mesh);
  MicroBatch batch = test_batch(config, {}, false);
  batch.auxiliary.scale = at::ones({}, at::kDouble);
  const auto loss = [&] { return model.token_losses(model.forward({}, batch, nullptr), batch).mean(); };
  loss().backward();  // allocates gradients, FP8 scales and weights
  const MemoryMeter meter;
  const at::Tensor output = loss();
  const auto saved = static_cast<double>(meter.live());
  output.backward();
  return {saved, static_cast<double>(meter.peak())};
}

RankBatch moe_rank_batch(const GPTConfig& config, const MoePrecision& precision) {
  return {.batch = {.samples = 4, .sequence_length = config.max_positions},
          .dtype = precision.dtype == at::kFloat ? Dtype::f32 : Dtype::bf16,
          .fp8 = precision.fp8.has_value(),
          .fp8_weight_gradients = !precision.fp8 || precision.fp8->weight_gradients,
          .gpu = false};
}

TEST(MoeOperators, SaveWhatTheModelSaves) {
  at::set_num_threads(1);  // the tensors are tiny
  bool all_run = true;
  for (const MoeBytesCase& c : moe_bytes_cases()) {
    if (computes_in_f32(c.dtype)) {
      all_run = false;
      continue;
    }
    const GPTConfig config = moe_bytes_config(c);
    const MoeBytes real = allocated_with_experts(config, {c.dtype, c.fp8}, {}, {});
    const ActivationMemory declared = activation_memory(
        gpt_operators(config)(moe_rank_batch(config, {c.dtype, c.fp8}), {.layers = config.layers}));
    EXPECT_NEAR(declared.saved / real.saved, 1.0, 0.001) << c.name;
    // The CPU casts to FP8 by way of fp32.
    EXPECT_NEAR(declared.peak / real.peak, 1.0, c.fp8 ? 0.03 : 0.015) << c.name;
  }
  if (!all_run) GTEST_SKIP() << "this processor computes bf16 in f32; all other cases were compared";
}

// Layers that predict further tokens, with the output layer and its loss for each, whose gradients are those
// of a step.
TEST(MtpOperators, SaveWhatTheModelSaves) {
  at::set_num_threads(1);
  GPTConfig config = moe_bytes_config({"mixtral"});
  config.mtp_layers = 2;
  add_mtp_layers(config);
  const MoeBytes real = allocated_with_experts(config, {}, {}, {});
  const std::vector<Operator> operators =
      gpt_operators(config)(moe_rank_batch(config, {}), {.layers = config.layers});
  EXPECT_NEAR(activation_memory(operators).saved / real.saved, 1.0, 0.01);
  // FLOPs: a layer, 4 h^2 for the joined inputs and 2 h V for the logits of each depth and token.
  GPTConfig plain = config;
  plain.mtp_layers = 0;
  const auto flops = [](const std::vector<Operator>& all, std::string_view prefix) {
    double sum = 0.0;
    for (const Operator& op : all) sum += op.name.starts_with(prefix) ? op.flops : 0.0;
    return sum;
  };
  const std::vector<Operator> before =
      gpt_operators(plain)(moe_rank_batch(plain, {}), {.layers = plain.layers});
  const double tokens = 4.0 * 128.0, h = 64.0;
  EXPECT_DOUBLE_EQ(flops(operators, "mtp.layers.1."),
                   flops(before, "decoder.layers.3.") + tokens * (4.0 * h * h + 2.0 * h * 256.0));
  EXPECT_DOUBLE_EQ(flops(operators, ""), flops(before, "") + 2.0 * flops(operators, "mtp.layers.0."));
}

TEST(MoeOperators, SaveLessWhereLayersAreRecomputed) {
  MoeBytesCase plain{"shared", [](MoeOptions& m) { use_shared_experts(m, true); }};
  MoeBytesCase recomputed = plain;
  recomputed.change = [](MoeOptions& m) {
    use_shared_experts(m, true);
    m.recompute = true;
  };
  const MoeBytes all = allocated_with_experts(moe_bytes_config(plain), {}, {}, {});
  const MoeBytes some = allocated_with_experts(moe_bytes_config(recomputed), {}, {}, {});
  EXPECT_LT(some.saved, 0.7 * all.saved);
}

// The mean of the ranks: their experts have different loads.
TEST(MoeOperators, SaveTheirShareOfExperts) {
  const std::vector<MeshOptions> layouts = {{.ep = 2, .dp = 2},
                                            {.tp = 2, .etp = 2},
                                            {.tp = 2, .ep = 2, .etp = 1},
                                            {.tp = 2, .ep = 2, .etp = 2, .dp = 2}};
  for (const MeshOptions& layout : layouts) {
    for (const bool padded : {false, true}) {
      for (const TokenDispatch dispatch : {TokenDispatch::all_gather, TokenDispatch::all_to_all}) {
        MoeBytesCase c{"", [&](MoeOptions& m) {
                         m.dispatch = dispatch;
                         m.router.capacity_factor = padded ? 1.5 : 0.0;
                         m.router.pad_to_capacity = padded;
                         use_shared_experts(m, true);
                       }};
        const GPTConfig config = moe_bytes_config(c);
        std::mutex mutex;
        double sum = 0.0;
        run_ranks(layout, [&](const Mesh& mesh) {
          const TensorParallel parallel{mesh.group(Axis::tp), layout.tp > 1};
          const double saved = allocated_with_experts(config, {}, parallel, mesh).saved;
          const std::lock_guard lock(mutex);
          sum += saved / static_cast<double>(mesh.world_size());
        });
        RankBatch batch = moe_rank_batch(config, {});
        batch.tensor_parallel = layout.tp;
        batch.sequence_parallel = layout.tp > 1;
        batch.expert_parallel = layout.ep;
        batch.expert_tensor_parallel = layout.etp;
        const ActivationMemory declared =
            activation_memory(gpt_operators(config)(batch, {.layers = config.layers}));
        EXPECT_NEAR(declared.saved / sum, 1.0, 0.001)
            << "tp " << layout.tp << ", ep " << layout.ep << ", etp " << layout.etp << ", padded " << padded
            << (dispatch == TokenDispatch::all_to_all ? ", all-to-all" : ", all-gather");
      }
    }
  }
}

}  // namespace
}  // namespace teratron
