#include "teratron/plan/rank_memory.h"

#include <algorithm>

#include "teratron/models/gpt/gpt.h"
#include "teratron/models/gpt/gpt_config.h"
#include "teratron/models/precision.h"
#include "teratron/settings/component_options.h"

namespace teratron {

namespace {

constexpr size_t most_advice = 3;

struct Counts {
  int64_t parameters = 0;
  int64_t in_fp8 = 0;  // elements of the weights of FP8 GEMMs
};

// Builds the stage on the meta device.
Counts count_parameters(const Arguments& a, const GPTConfig& config, const std::vector<StageSpec>& chunks) {
  ParameterSet set({.device = at::kMeta, .fp8 = fp8_options(a)});
  const TensorParallel parallel{.group = {.rank = 0, .size = a.tensor_model_parallel_size}};
  for (const StageSpec& chunk : chunks) {
    const GPT part(set, config, chunk, parallel);
  }
  Counts counts{.parameters = set.numel()};
  if (!set.fp8()) return counts;
  for (const std::string& weight : set.fp8()->layers()) counts.in_fp8 += set.find(weight)->tensor.numel();
  return counts;
}

// The model's copy of the weights, and of those in FP8 a quantized and a transposed copy.
double weight_bytes(const Arguments& a, const Counts& counts) {
  const auto copy = static_cast<double>(counts.parameters) * (a.bf16 || a.fp16 ? 2.0 : 4.0);
  return copy + 2.0 * static_cast<double>(counts.in_fp8);
}

// Bytes of activations that the layers of a stage save for one micro-batch, with fused attention: 34 s b h
// per layer in 16 bits, of which the 10 outside the tensor-parallel regions are sharded by sequence
// parallelism only (Korthikanti et al. 2022); with recomputation, the input of each unit.
double layer_activations(const Arguments& a, const GPTConfig& config, int64_t layers) {
  const auto tp = static_cast<double>(a.tensor_model_parallel_size);
  const double bytes = static_cast<double>(*a.seq_length * *a.micro_batch_size) *
                       static_cast<double>(config.hidden) * (a.bf16 || a.fp16 ? 1.0 : 2.0);
  const double whole = bytes * ((a.sequence_parallel ? 10.0 / tp : 10.0) + 24.0 / tp);
  const RecomputeConfig& recompute = config.recompute;
  const double input = 2.0 * bytes / (a.sequence_parallel || recompute.distribute_inputs ? tp : 1.0);
  if (recompute.granularity != RecomputeConfig::Granularity::layers)
    return static_cast<double>(layers) * whole;
  if (recompute.method == RecomputeConfig::Method::uniform) {
    return static_cast<double>((layers + recompute.layers - 1) / recompute.layers) * input;
  }
  const int64_t recomputed = std::min(layers, recompute.layers);
  return static_cast<double>(recomputed) * input + static_cast<double>(layers - recomputed) * whole;
}

// Moments and master weights: fp32 next to fp16 weights, the lower 16 bits of fp32 next to bf16.
double optimizer_bytes_per_parameter(const Arguments& a) {
  const double moments = a.optimizer == "adam" ? 8.0 : a.sgd_momentum > 0.0 ? 4.0 : 0.0;
  return moments + (a.fp16 ? 4.0 : a.bf16 ? 2.0 : 0.0);
}

bool divides(int64_t part, const std::optional<int64_t>& whole) {
  return whole && *whole % part == 0;
}

// Twice the present tensor and pipeline parallel sizes, if they divide the model.
std::vector<std::string> larger_parallel_sizes(const Arguments& a) {
  const int64_t tp = 2 * a.tensor_model_parallel_size, pp = 2 * a.pipeline_model_parallel_size;
  std::vector<std::string> flags;
  if (divides(tp, a.num_attention_heads)) flags.push_back(fmt::format("--tensor-model-parallel-size {}", tp));
  if (divides(pp, a.num_layers)) flags.push_back(fmt::format("--pipeline-model-parallel-size {}", pp));
  return flags;
}

// Reduces weights, gradients and optimizer state.
std::vector<std::string> state_advice(const Arguments& a) {
  std::vector<std::string> advice;
  if (!a.use_distributed_optimizer && *a.data_parallel_size > 1) {
    advice.push_back(fmt::format("--use-distributed-optimizer: shards the optimizer state over {} ranks",
                                 *a.data_parallel_size));
  }
  const std::vector<std::string> flags = larger_parallel_sizes(a);
  if (!flags.empty()) {
    advice.push_back(fmt::format("{}, with more ranks: splits the model in two", fmt::join(flags, " or ")));
  }
  return advice;
}

// Reduces activations.
std::vector<std::string> activation_advice(const Arguments& a) {
  std::vector<std::string> advice;
  if (*a.micro_batch_size > 1) {
    advice.push_back(fmt::format("--micro-batch-size {} (now {}): same global batch, smaller micro-batches",
                                 *a.micro_batch_size / 2, *a.micro_batch_size));
  }
  if (!a.bf16 && !a.fp16) advice.emplace_back("--bf16: halves activations");
  if (a.recompute_granularity != "full") {
    advice.emplace_back(
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1: saves only the "
        "inputs of the layers, for a third more computation");
  }
  if (a.tensor_model_parallel_size > 1 && !a.sequence_parallel) {
    advice.emplace_back("--sequence-parallel: shards the activations that tensor parallelism replicates");
  }
  return advice;
}

}  // namespace

GPTConfig model_from_args(const Arguments& args) {
  // NullTokenizer adds an end-of-document token.
  if (args.vocab_size)
    return gpt_config(args, *args.vocab_size + (args.tokenizer_type == "NullTokenizer" ? 1 : 0));
  if (args.padded_vocab_size) return gpt_config(args, *args.padded_vocab_size);
  return gpt_config(args, build_tokenizer(tokenizer_options(args))->vocab_size());
}

RankMemory rank_memory(const Arguments& a, const GPTConfig& model, int64_t stage) {
  const PipelineLayout layout = pipeline_layout(layout_options(a));
  const std::vector<StageSpec> chunks = layout.chunks_of_stage(stage);
  const Counts counts = count_parameters(a, model, chunks);
  const auto count = static_cast<double>(counts.parameters);
  const double shares = a.use_distributed_optimizer ? static_cast<double>(*a.data_parallel_size) : 1.0;
  RankMemory memory{.parameters = counts.parameters,
                    .weights = weight_bytes(a, counts),
                    .gradients = count * 4.0,
                    .optimizer = count * optimizer_bytes_per_parameter(a) / shares};
  double all = 0.0;
  for (const StageSpec& chunk : chunks) all += layer_activations(a, model, chunk.layers);
  const int64_t in_flight = activations_by_formula(stage, schedule_shape(a, layout, *a.num_micro_batches));
  memory.activations = all * static_cast<double>(in_flight) / static_cast<double>(layout.chunks);
  return memory;
}

std::vector<std::string> memory_advice(const Arguments& args, const RankMemory& memory) {
  std::vector<std::string> advice = state_advice(args);
  const std::vector<std::string> activations = activation_advice(args);
  const bool state_first = memory.state() > memory.activations;
  advice.insert(state_first ? advice.end() : advice.begin(), activations.begin(), activations.end());
  advice.resize(std::min(advice.size(), most_advice));
  return advice;
}

Fault explain_out_of_memory(const Fault& cause, const Arguments& args, int64_t stage) {
  const RankMemory memory = rank_memory(args, model_from_args(args), stage);
  std::string text = fmt::format(
      "{}\n"
      "Memory of a rank in pipeline stage {}, in GiB: weights {:.2f}, gradients {:.2f}, optimizer {:.2f}, "
      "activations about {:.2f}; total {:.2f}.\n"
      "To reduce it:",
      cause.what(), stage, memory.weights / gib, memory.gradients / gib, memory.optimizer / gib,
      memory.activations / gib, memory.sum() / gib);
  for (const std::string& line : memory_advice(args, memory)) text += "\n  " + line;
  return Fault(text, ExitCode::out_of_memory);
}

}  // namespace teratron
