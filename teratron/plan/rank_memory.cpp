#include "teratron/plan/rank_memory.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "teratron/comm/nccl/push_windows.h"
#include "teratron/comm/nccl/symmetric_pool.h"
#include "teratron/models/lora.h"
#include "teratron/models/precision.h"
#include "teratron/optim/param_and_grad_buffer.h"
#include "teratron/plan/activation_memory.h"
#include "teratron/plan/roofline.h"
#include "teratron/settings/component_options.h"
#include "teratron/settings/optimizer_rules.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {

namespace {

// Ranks that only have places.
class PlannedWorld : public World {
 public:
  explicit PlannedWorld(int64_t size) : size_(size) {}
  int64_t rank() const override { return 0; }
  int64_t size() const override { return size_; }
  std::shared_ptr<Communicator> group(const std::vector<int64_t>&) override { return self_communicator(); }

 private:
  int64_t size_;
};

struct Counts {
  int64_t parameters = 0;
  int64_t trainable = 0;
  int64_t padding = 0;            // of buffers of whole matrices
  std::vector<double> optimized;  // by optimizer rule: those that the fullest rank steps
  int64_t in_fp8 = 0;             // elements of the weights of FP8 GEMMs
};

int64_t bucket_size(const Arguments& a) {
  return a.ddp_bucket_size.value_or(ParamAndGradBuffer::Options().bucket_size);
}

TensorParallel tensor_parallel(const Arguments& a) {
  return {.group = {.rank = 0, .size = a.tensor_model_parallel_size},
          .sequence_parallel = a.sequence_parallel && a.tensor_model_parallel_size > 1};
}

// Advice changes sizes one by one: the number of ranks follows from them.
int64_t planned_ranks(const Arguments& a) {
  const int64_t tp = a.tensor_model_parallel_size, pp = a.pipeline_model_parallel_size;
  const int64_t dense = tp * pp * a.context_parallel_size * a.data_parallel_size.value_or(1);
  return std::lcm(dense, a.expert_tensor_parallel_size.value_or(tp) * a.expert_model_parallel_size * pp);
}

// Parameters of a rule of whole matrices that the distributed optimizer divides over the same replicas.
struct MatrixBuffer {
  size_t rule = 0;
  Group replicas = {};
  std::vector<BucketItem> matrices = {};  // in order of registration
};

// Slices of a bucket are padded to the fullest. In buffers of other rules the padding is below 64 elements
// for each rank and parameter, and not counted.
void count_slices(MatrixBuffer buffer, int64_t bucket_size, Counts& counts) {
  std::vector<BucketItem>& items = buffer.matrices;
  std::ranges::reverse(items);
  const int64_t ranks = buffer.replicas.size;
  const BucketLayout layout =
      lay_out(items, {.bucket_size = bucket_size, .block = optimizer_block, .ranks = ranks, .whole = true});
  std::vector<int64_t> owned(static_cast<size_t>(ranks));
  for (const BucketLayout::Bucket& bucket : layout.buckets) {
    counts.padding += bucket.elements;
    for (size_t i = bucket.first; i < bucket.end; ++i) {
      owned[(layout.begins[i] - bucket.begin) / (bucket.elements / ranks)] += items[i].elements;
      counts.padding -= items[i].elements;
    }
  }
  counts.optimized[buffer.rule] += static_cast<double>(std::ranges::max(owned));
}

MatrixBuffer& buffer_of(std::vector<MatrixBuffer>& buffers, size_t rule, const Group& replicas) {
  const auto found = std::ranges::find_if(buffers, [&](const MatrixBuffer& buffer) {
    return buffer.rule == rule && buffer.replicas.ranks == replicas.ranks;
  });
  return found != buffers.end() ? *found
                                : buffers.emplace_back(MatrixBuffer{.rule = rule, .replicas = replicas});
}

// Builds the stage on the meta device.
Counts count_parameters(const Arguments& a, const ModelPlan& model, const std::vector<StageSpec>& chunks,
                        const OptimizerRules& rules) {
  const std::optional<LoraOptions> lora = lora_options(a, model);
  ParameterSet set({.device = at::kMeta, .fp8 = fp8_options(a), .lora = lora});
  const TensorParallel parallel = tensor_parallel(a);
  PlannedWorld world(planned_ranks(a));
  const Mesh mesh(mesh_options(a), world);
  for (const StageSpec& chunk : chunks) model.build({set, chunk, parallel, mesh});
  if (lora) freeze_base(set);
  std::vector<MatrixBuffer> buffers;
  Counts counts{.parameters = set.numel(), .optimized = std::vector<double>(rules.size())};
  for (const Parameter& parameter : set.all()) {
    if (!parameter.options.trainable) continue;
    const Group& replicas = mesh.group(parameter.options.replicated_over);
    const size_t rule = rule_of(rules, parameter);
    const int64_t elements = parameter.tensor.numel();
    counts.trainable += elements;
    if (a.use_distributed_optimizer && rules[rule].rule->unit() == OptimizerRule::Unit::matrix) {
      buffer_of(buffers, rule, replicas).matrices.push_back({parameter.name, elements});
    } else {
      counts.optimized[rule] += as_real(elements) / as_real(a.use_distributed_optimizer ? replicas.size : 1);
    }
  }
  for (MatrixBuffer& buffer : buffers) count_slices(std::move(buffer), bucket_size(a), counts);
  if (set.fp8()) counts.in_fp8 = set.fp8()->weight_elements();
  return counts;
}

// The model's copy of the weights, and of those in FP8 a quantized and a transposed copy.
double weight_bytes(const Arguments& a, const Counts& counts) {
  const auto copy = static_cast<double>(counts.parameters + counts.padding) * (a.bf16 || a.fp16 ? 2.0 : 4.0);
  return copy + 2.0 * static_cast<double>(counts.in_fp8);
}

RankBatch rank_batch(const Arguments& a) {
  return {.batch = {*a.micro_batch_size, a.seq_length.value_or(1)},
          .segmented = a.reset_attention_mask || a.sft,
          .dtype = a.bf16   ? Dtype::bf16
                   : a.fp16 ? Dtype::f16
                            : Dtype::f32,
          .fp8 = a.fp8.has_value(),
          .fp8_weight_gradients = a.fp8_wgrad,
          .gpu = a.device != "cpu",
          .tensor_parallel = a.tensor_model_parallel_size,
          .sequence_parallel = tensor_parallel(a).sequence_parallel,
          .context_parallel = a.context_parallel_size,
          .expert_parallel = a.expert_model_parallel_size,
          .expert_tensor_parallel = a.expert_tensor_parallel_size.value_or(a.tensor_model_parallel_size)};
}

// Activations of the micro-batches in flight, and the most that one chunk needs besides, with its windows.
void add_activations(RankMemory& memory, const ModelPlan& model, const Arguments& a,
                     const std::vector<StageSpec>& chunks, double in_flight) {
  double windows = 0.0;
  for (const StageSpec& chunk : chunks) {
    const std::vector<Operator> operators = model.operators(rank_batch(a), chunk);
    for (const Operator& op : operators) windows = std::max(windows, op.windows);
    const ActivationMemory one = activation_memory(operators);
    memory.activations += one.saved * in_flight / static_cast<double>(chunks.size());
    memory.host += one.host * in_flight / static_cast<double>(chunks.size());
    memory.temporary = std::max(memory.temporary, one.peak - one.saved);
  }
  memory.temporary += windows;
}

// The rules' states and master weights: fp32 next to fp16 weights, the lower 16 bits of fp32 next to bf16.
double optimizer_bytes(const Arguments& a, const Counts& counts, const OptimizerRules& rules) {
  const double master = a.fp16 ? 4.0 : a.bf16 ? 2.0 : 0.0;
  double bytes = 0.0;
  for (size_t i = 0; i < rules.size(); ++i)
    bytes += counts.optimized[i] * (static_cast<double>(state_bytes(*rules[i].rule)) + master);
  return bytes;
}

constexpr auto push_memory = static_cast<double>(push_windows * push_window_bytes);  // of a group

/// Windows of the distributed optimizer for the ranks of one host. Experts have other replicas, hence other
/// windows.
double gradient_window_memory(const Arguments& a, double trainable) {
  const int64_t replicas = *a.data_parallel_size * a.context_parallel_size;
  const double bucket = std::min(static_cast<double>(bucket_size(a)), trainable);
  const bool pushed = a.use_distributed_optimizer && replicas > 1 &&
                      4.0 * bucket / static_cast<double>(replicas) >= min_push_bytes;
  const double groups = a.num_experts && a.expert_model_parallel_size > 1 ? 2.0 : 1.0;
  return pushed ? groups * push_memory : 0.0;
}

/// Lengths of the sequences of hidden states, [S, B, width], which the stages exchange.
std::set<int64_t> hidden_lengths(const ModelPlan& model) {
  MicroBatch batch;
  for (const Column& column : model.batch) {
    const bool has_tokens = column.kind == Column::Kind::sequence || column.kind == Column::Kind::index;
    if (has_tokens) batch.tensors.set(column.name, at::empty({column.shape.at(0), 1}, at::kMeta));
  }
  std::set<int64_t> lengths;
  for (const Channel& channel : model.channels) {
    const std::vector<int64_t> shape = channel.shape(batch, /*sequence_shards=*/1);
    if (shape.size() == 3) lengths.insert(shape[0]);
  }
  return lengths;
}

/// Windows of sequence parallelism. Backward pushes input gradients. A row layer that is not in FP8 pushes
/// its output while it computes it, into a window of the whole output's size. The window is kept, one for
/// each length of sequences.
double sequence_window_memory(const Arguments& a, const ModelPlan& model) {
  if (!tensor_parallel(a).sequence_parallel || !a.hidden_size) return 0.0;
  const double element = a.bf16 || a.fp16 ? 2.0 : 4.0;
  double received = 0.0;
  for (const int64_t length : hidden_lengths(model)) {
    const double output = element * static_cast<double>(*a.micro_batch_size * *a.hidden_size * length) /
                          static_cast<double>(a.context_parallel_size);
    if (output < static_cast<double>(a.tensor_model_parallel_size * min_push_bytes)) continue;
    received += static_cast<double>(SymmetricPool::round_size(static_cast<size_t>(output)));
  }
  if (received == 0.0) return 0.0;
  const bool while_computed = !a.fp8 && a.async_tensor_model_parallel_allreduce;
  return push_memory + (while_computed ? received : 0.0);
}

}  // namespace

int64_t total_parameters(const ModelPlan& model) {
  ParameterSet set({.device = at::kMeta});
  PlannedWorld world(1);
  const Mesh mesh({}, world);
  model.build({set, {.layers = model.layers()}, {}, mesh});
  int64_t total = 0;
  for (const Parameter& parameter : set.all()) {
    int64_t elements = 1;
    for (const int64_t size : parameter.shard().global_shape) elements *= size;
    total += elements;
  }
  return total;
}

int64_t planned_vocabulary(const Arguments& args) {
  // NullTokenizer adds an end-of-document token.
  if (args.vocab_size) return *args.vocab_size + (args.tokenizer_type == "NullTokenizer" ? 1 : 0);
  if (args.padded_vocab_size) return *args.padded_vocab_size;
  return build_tokenizer(tokenizer_options(args))->vocab_size();
}

RankMemory rank_memory(const Arguments& args, const ModelPlan& model, int64_t stage) {
  return rank_memory(args, model, stage, optimizer_rules(args));
}

RankMemory rank_memory(const Arguments& a, const ModelPlan& model, int64_t stage,
                       const OptimizerRules& rules) {
  const PipelineLayout layout = pipeline_layout(a, model);
  const std::vector<StageSpec> chunks = layout.chunks_of_stage(stage);
  const Counts counts = count_parameters(a, model, chunks, rules);
  const auto trainable = static_cast<double>(counts.trainable);
  RankMemory memory{.parameters = counts.parameters,
                    .weights = weight_bytes(a, counts),
                    .gradients = (trainable + as_real(counts.padding)) * 4.0,
                    .optimizer = optimizer_bytes(a, counts, rules)};
  const int64_t in_flight = activations_by_formula(stage, schedule_shape(a, layout, *a.num_micro_batches));
  if (model.operators) add_activations(memory, model, a, chunks, static_cast<double>(in_flight));
  memory.temporary += gradient_window_memory(a, trainable) + sequence_window_memory(a, model);
  return memory;
}

RankMemory largest_rank_memory(const Arguments& a, const ModelPlan& model) {
  RankMemory largest;
  for (int64_t stage = 0; stage < a.pipeline_model_parallel_size; ++stage) {
    const RankMemory memory = rank_memory(a, model, stage);
    if (memory.peak() > largest.peak()) largest = memory;
  }
  return largest;
}

double least_step_seconds(const Arguments& a, const ModelPlan& model, const Gpu& gpu) {
  const PipelineLayout layout = pipeline_layout(a, model);
  double slowest = 0.0;
  for (int64_t stage = 0; stage < layout.stages; ++stage) {
    const RankMemory memory = rank_memory(a, model, stage);
    // The optimizer reads gradients, reads and writes the rest.
    double seconds = (memory.gradients + 2.0 * (memory.weights + memory.optimizer)) / gpu.bandwidth;
    for (const StageSpec& chunk : layout.chunks_of_stage(stage)) {
      seconds += static_cast<double>(*a.num_micro_batches) *
                 roofline_seconds(model.operators(rank_batch(a), chunk), gpu,
                                  a.bf16 || a.fp16 ? MathMode::half : MathMode::fp32);
    }
    slowest = std::max(slowest, seconds);
  }
  return slowest;
}

}  // namespace teratron
