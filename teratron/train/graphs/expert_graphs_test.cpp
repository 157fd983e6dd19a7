// Models with experts whose micro-batches are replayed as CUDA graphs: every option of router and experts.
#include "teratron/testing/graph_runs.h"
#include "teratron/train/engine/engine_options.h"

namespace teratron {
namespace {

using Change = void (*)(GPTConfig& config, RouterOptions& router, MoeOptions& moe);

struct ExpertGraphCase {
  const char* name;
  Change change;
  std::optional<LoraOptions> lora = {};
  std::optional<Fp8Options> fp8 = {};
};

const std::vector<ExpertGraphCase> expert_cases = {
    {"without drops", [](GPTConfig&, RouterOptions&, MoeOptions&) {}},
    {"every loss, jitter and dropout",
     [](GPTConfig& config, RouterOptions& router, MoeOptions&) {
       config.hidden_dropout = 0.1;
       router.jitter = 0.1;
       router.seq_aux_loss = router.global_aux_loss = 0.2;
       router.z_loss = 0.05;
       router.dtype = at::kFloat;
     }},
    {"expert biases, groups and shared experts",
     [](GPTConfig&, RouterOptions& router, MoeOptions& moe) {
       router.routing = {.topk = 4, .score = RouterScore::sigmoid, .groups = 4, .group_topk = 2};
       router.expert_bias = true;
       router.expert_bias_rate = 0.05;
       moe.shared = {.mlp = {.ffn_hidden = 32}, .gate = true};
     }},
    {"drops",
     [](GPTConfig&, RouterOptions& router, MoeOptions&) {
       router.capacity_factor = 0.75;
       router.drop_policy = DropPolicy::position;
     }},
    {"padding to capacity",
     [](GPTConfig&, RouterOptions& router, MoeOptions&) {
       router.routing.score = RouterScore::sqrtsoftplus;
       router.expert_bias = true;
       router.expert_bias_rate = 0.05;
       router.capacity_factor = 1.25;
       router.jitter = 0.1;
       router.pad_to_capacity = true;
     }},
    {"biases",
     [](GPTConfig& config, RouterOptions& router, MoeOptions& moe) {
       config.linear_bias = true;
       config.activation = Activation::gelu;
       router.bias = moe.experts.bias = true;
     }},
    {"recomputed layers of experts",
     [](GPTConfig&, RouterOptions&, MoeOptions& moe) { moe.recompute = true; }},
    {"recomputed layers",
     [](GPTConfig& config, RouterOptions& router, MoeOptions&) {
       config.recompute = {.granularity = RecomputeConfig::Granularity::layers};
       router.capacity_factor = 1.0;
       router.force_balance = true;
     }},
    {"adapters", [](GPTConfig&, RouterOptions&, MoeOptions&) {},
     LoraOptions{.rank = 4, .alpha = 8, .targets = {"linear_qkv", "linear_fc1", "linear_fc2"}}},
    {"FP8", [](GPTConfig&, RouterOptions&, MoeOptions& moe) { moe.shared = {.mlp = {.ffn_hidden = 32}}; },
     std::nullopt, Fp8Options{}}};

GraphCase graph_case(const ExpertGraphCase& c, at::Device device) {
  GPTConfig config = llama_config(graph_sizes);
  config.experts.layers = std::vector<int64_t>(static_cast<size_t>(config.layers), 1);
  config.experts.layers.front() = 0;
  config.init_std = 0.1;  // loads that differ
  MoeOptions& moe = config.experts.options;
  moe.router.experts = moe.experts.experts = 8;
  moe.experts.ffn_hidden = 32;
  moe.router.aux_loss = 0.1;
  c.change(config, moe.router, moe);
  return {.config = config, .device = device, .dtype = at::kBFloat16, .fp8 = c.fp8, .lora = c.lora};
}

TEST(ExpertGraphs, BitwiseEqualToEager) {
  for (const ExpertGraphCase& c : expert_cases) {
    SCOPED_TRACE(c.name);
    expect_the_same(graph_case(c, at::kCPU));
  }
}

TEST(ExpertGraphs, BitwiseEqualWithDataParallel) {
  for (const ExpertGraphCase& c : {expert_cases[2], expert_cases[4]}) {
    SCOPED_TRACE(c.name);
    GraphCase parallel = graph_case(c, at::kCPU);
    parallel.steps = {1, 2, 2, 2};
    parallel.layout = {.dp = 2, .sharded = true};
    expect_the_same(parallel);
  }
}

TEST(ExpertGraphs, NeedGemmsThatDoNotWait) {
  Arguments args;
  args.cuda_graph_impl = "local";
  EXPECT_NO_THROW(check_expert_graphs_on(args, "NVIDIA A100", 80)) << "no experts";
  args.num_experts = 4;
  EXPECT_NO_THROW(check_expert_graphs_on(args, "NVIDIA H200", 90));
  EXPECT_NO_THROW(check_expert_graphs_on(args, "NVIDIA B200", 100));
  args.fp8 = "hybrid";
  EXPECT_NO_THROW(check_expert_graphs_on(args, "NVIDIA H200", 90));
  EXPECT_THROW(check_expert_graphs_on(args, "NVIDIA B200", 100), UserError);
  args.fp8 = std::nullopt;
  try {
    check_expert_graphs_on(args, "NVIDIA A100", 80);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    EXPECT_NE(
        std::string(error.what()).find("NVIDIA A100 has compute capability 8.0, where GEMMs of experts"),
        std::string::npos)
        << error.what();
  }
  args.cuda_graph_impl = "auto";
  EXPECT_NO_THROW(check_expert_graphs_on(args, "NVIDIA A100", 80));
}

// Sinkhorn waits for the device: only graphs that the user asks for would fail.
TEST(ExpertGraphs, LeaveSinkhornAlone) {
  GraphCase c = graph_case(expert_cases[0], at::kCPU);
  c.steps = std::vector<int64_t>(12, 1);
  const GraphUse by_themselves{.after = graph_warm_up, .where_host_bound = true};
  EXPECT_FALSE(run_graphs(c, by_themselves).graphs.empty());
  RouterOptions& router = c.config.experts.options.router;
  router.sinkhorn = true;
  router.aux_loss = 0.0;
  EXPECT_TRUE(run_graphs(c, by_themselves).graphs.empty());
}

// ---- On a GPU ----

TEST_F(GpuGraphs, OfExpertsBitwiseEqualToEager) {
  if (compute_capability(at::kCUDA) / 10 != 9) GTEST_SKIP() << "no grouped GEMM for this GPU";
  for (const ExpertGraphCase& c : expert_cases) {
    SCOPED_TRACE(c.name);
    const GraphCase one = graph_case(c, at::kCUDA);
    EXPECT_EQ(run_graphs(one, {}).numbers, run_graphs(one, {}).numbers) << "without graphs the bits repeat";
    expect_the_same(one);
  }
}

TEST_F(GpuGraphs, OfExpertsChooseThemselves) {
  if (compute_capability(at::kCUDA) / 10 != 9) GTEST_SKIP() << "no grouped GEMM for this GPU";
  for (const ExpertGraphCase& c : {expert_cases[0], expert_cases[4]}) {
    SCOPED_TRACE(c.name);
    GraphCase one = graph_case(c, at::kCUDA);
    one.steps = std::vector<int64_t>(12, 4);
    const GraphUse by_themselves{.after = graph_warm_up, .where_host_bound = true};
    expect_the_same(one, by_themselves);
    EXPECT_FALSE(run_graphs(one, by_themselves).graphs.empty());
  }
}

}  // namespace
}  // namespace teratron
