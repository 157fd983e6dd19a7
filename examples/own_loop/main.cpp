// A training loop put together from the library's parts, without Trainer and TrainEngine: a mesh, parallel
// layers, a pipeline schedule, gradient buffers, an optimizer, a schedule of its rate and checkpoints.
//
//   teratron launch --nproc-per-node 8 -- own_loop TP PP STEPS DIR
//
// The other ranks are data-parallel and shard the optimizer (ZeRO-1). The loop goes on from the newest
// checkpoint in DIR and saves one. `teratron pretrain gpt` of these sizes has the same losses, bit for bit.
#include <cmath>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/cli/program.h"
#include "teratron/comm/collectives.h"
#include "teratron/comm/mesh/mesh.h"
#include "teratron/comm/world.h"
#include "teratron/models/gpt/data/gpt_dataset.h"
#include "teratron/models/gpt/data/mock_gpt_dataset.h"
#include "teratron/models/weights.h"
#include "teratron/nn/attention/attention_layer.h"
#include "teratron/nn/embedding.h"
#include "teratron/nn/mlp.h"
#include "teratron/nn/norm.h"
#include "teratron/nn/vocab_parallel_cross_entropy.h"
#include "teratron/optim/lr_schedule.h"
#include "teratron/optim/optimizer.h"
#include "teratron/pipeline/executor.h"
#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/train/data/batch_source.h"

using namespace teratron;

namespace {

constexpr int64_t layers = 4, hidden = 32, heads = 4, sequence = 16, vocabulary = 31, padded_vocabulary = 256;
constexpr int64_t micro_batch = 2, global_batch = 16;

const Init weights = Init::normal(0.02);
const Init output_weights = Init::normal(0.02 / std::sqrt(2.0 * layers));  // of what is added to the residual

const AttentionLayerOptions attention_options = {.hidden = hidden,
                                                 .heads = heads,
                                                 .query_groups = heads,
                                                 .kv_channels = hidden / heads,
                                                 .qkv_init = weights,
                                                 .output_init = output_weights};
const MlpOptions mlp_options = {
    .hidden = hidden, .ffn_hidden = 4 * hidden, .fc1_init = weights, .fc2_init = output_weights};

// h = x + attention(norm(x)), y = h + mlp(norm(h)).
class Block {
 public:
  Block(const Scope& scope, const TensorParallel& parallel)
      : attention_norm_(scope / "input_layernorm", hidden, {}, parallel),
        attention_(scope / "self_attention", attention_options, parallel),
        mlp_norm_(scope / "pre_mlp_layernorm", hidden, {}, parallel),
        mlp_(scope / "mlp", mlp_options, parallel) {}

  Hidden forward(const Hidden& x, const LayerContext& context) {
    const auto [attention_in, x_SBH] = attention_norm_.forward_with_residual(x);
    const Hidden h = attention_.forward_add_residual(attention_in, {.residual_SBH = x_SBH}, context, nullptr);
    const auto [mlp_in, h_SBH] = mlp_norm_.forward_with_residual(h);
    return mlp_.forward_add_residual(mlp_in, {.residual_SBH = h_SBH});
  }

 private:
  Norm attention_norm_;
  SelfAttention attention_;
  Norm mlp_norm_;
  Mlp mlp_;
};

// The layers of this rank's pipeline stage, with the embeddings on the first and the loss on the last.
class Stage {
 public:
  Stage(ParameterSet& parameters, const StageSpec& spec, const TensorParallel& parallel)
      : spec_(spec), parallel_(parallel) {
    const Scope root(parameters), embedding = root / "embedding", decoder = root / "decoder";
    if (spec.embedding || spec.head) {  // of one name, hence tied
      words_.emplace(embedding / "word_embeddings",
                     VocabularyOptions{vocabulary, padded_vocabulary, hidden, weights}, parallel);
    }
    if (spec.embedding) {
      positions_.emplace(embedding / "position_embeddings", Embedding::Options{sequence, hidden, weights},
                         parallel);
    }
    for (int64_t i = spec.first_layer; i < spec.first_layer + spec.layers; ++i)
      blocks_.push_back(std::make_unique<Block>(decoder / "layers" / std::to_string(i), parallel));
    if (!spec.head) return;
    final_norm_.emplace(decoder / "final_layernorm", hidden, NormOptions{}, parallel);
    output_layer_.emplace(ParallelMatmul::column(words_->weight(), nullptr, parallel));
  }

  // -> hidden states [S, B, H] for the next stage, S local under sequence parallelism; on the last the sum of
  // the losses of all tokens that count.
  at::Tensor forward(const std::vector<at::Tensor>& inputs, const MicroBatch& batch) {
    const LayerContext context{.positions_SB = batch["sequence_index"]};
    Hidden h;
    h.x_SBH = spec_.embedding ? positions_->add_to_(words_->forward(batch["tokens"]),
                                                    parallel_.sequence_shard(batch["sequence_index"]))
                              : inputs.front();
    for (const auto& block : blocks_) h = block->forward(h, context);
    if (!spec_.head) return apply_bias_grad(h);
    const at::Tensor y_SBH = final_norm_->forward_with_residual(h).normed;
    return masked_loss(
               linear_cross_entropy(y_SBH, *output_layer_, batch["labels"], {.vocabulary = vocabulary}),
               batch["loss_mask"])
        .sum;
  }

  const StageSpec& spec() const { return spec_; }

 private:
  StageSpec spec_;
  TensorParallel parallel_;
  std::optional<VocabParallelEmbedding> words_;
  std::optional<Embedding> positions_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::optional<Norm> final_norm_;
  std::optional<ParallelMatmul> output_layer_;
};

class Training {
 public:
  Training(const Mesh& mesh, int64_t steps, std::string directory)
      : mesh_(mesh),
        steps_(steps),
        directory_(std::move(directory)),
        stages_(mesh.group(Axis::pp)),
        parallel_{mesh.group(Axis::tp), /*sequence_parallel=*/mesh.group(Axis::tp).size > 1},
        stage_(parameters_,
               pipeline_layout({.layers = layers, .stages = stages_.size})
                   .virtual_stages.at(static_cast<size_t>(stages_.rank)),
               parallel_),
        buffers_(parameters_, mesh, {.sharded = true}),
        optimizer_(buffers_, mesh, {}),
        schedule_({.max_lr = 1e-2,
                   .warmup_steps = 5.0 * global_batch,
                   .decay_steps = 6.0 * global_batch,
                   .decay_style = LrDecayStyle::constant}) {
    connect_links(mesh, parameters_.options().tensors());
  }

  void run() {
    load();
    const auto samples = std::make_shared<MockGPTDataset>(MockGPTDataset::Options{
        .samples = steps_ * global_batch, .sequence_length = sequence, .vocab_size = vocabulary});
    const Group& replicas = mesh_.data_parallel();
    BatchSource data(samples,
                     {.loader = {.sampler = {.consumed_samples = step_ * global_batch,
                                             .micro_batch_size = micro_batch,
                                             .dp_rank = replicas.rank,
                                             .dp_size = replicas.size}},
                      .schema = gpt_schema(sequence, {})},
                     mesh_);
    for (; step_ < steps_; ++step_) {
      const double loss = train_step(data);
      if (mesh_.rank() == mesh_.world_size() - 1) print("step {}: loss {:.17g}", step_ + 1, loss);
    }
    save();
  }

 private:
  double train_step(BatchSource& data) {
    if (global_batch % (micro_batch * mesh_.data_parallel().size) != 0)
      throw config_error(
          {.what = "the data-parallel ranks do not divide the batch of 16 in micro-batches of 2"});
    const int64_t microbatches = global_batch / micro_batch / mesh_.data_parallel().size;
    const auto tokens = static_cast<double>(global_batch * sequence);  // all count
    at::Tensor loss = at::zeros({1}, at::kDouble);
    buffers_.zero_grad();
    const auto forward = [&](const Action&, const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
      const at::Tensor out = stage_.forward(in, data.next());
      if (!stage_.spec().head) return {out};
      loss += out.detach();
      return {out / tokens};  // gradients are summed
    };
    const auto before_backward = [&](const Action& action) {
      if (action.microbatch == microbatches - 1) buffers_.set_last_microbatch();
    };
    const MessageShape shape{{sequence / parallel_.group.size, micro_batch, hidden},
                             parameters_.options().tensors()};
    ChunkMessages messages;
    if (!stage_.spec().embedding) messages.in = {shape};
    if (!stage_.spec().head) messages.out = {shape};
    run_schedule(schedule(stages_.rank, {.stages = stages_.size, .microbatches = microbatches}),
                 mesh_.pipeline_links(), {forward, before_backward, [&](const Action&) { return messages; }});
    buffers_.finish_grad_sync();
    optimizer_.step({.lr = schedule_.lr(), .weight_decay = schedule_.wd()});
    schedule_.step(global_batch);
    mesh_.group(replica_axes | Axis::pp).communicator->all_reduce(loss, ReduceOp::sum).wait();
    return loss.item<double>() / tokens;
  }

  // Weights, and the optimizer's moments, of which every replica has a part.
  std::vector<StateTensor> tensors() {
    buffers_.finish_param_gather();
    std::vector<StateTensor> all = parameter_tensors(parameters_);
    for (const StateTensor& state : optimizer_.state()) all.push_back(state);
    return all;
  }

  void save() {
    std::vector<LocalTensor> parts;
    for (const StateTensor& tensor : tensors()) {
      parts.push_back(local_tensor(tensor, tensor.type()));
      parts.back().data = tensor.values.data_ptr();
    }
    const nlohmann::json state = {{"step", step_}, {"schedule", schedule_.state()}};
    save_checkpoint({.directory = directory_, .iteration = step_, .tensors = parts, .state = state.dump()},
                    *mesh_.world().communicator);
  }

  void load() {
    HostTensors host;
    for (const StateTensor& tensor : tensors()) host.add(tensor, tensor.type());
    const auto found =
        load_checkpoint({.directory = directory_, .tensors = host.list()}, *mesh_.world().communicator);
    if (!found) return;
    host.copy_from_host();
    const auto state = nlohmann::json::parse(found->state);
    optimizer_.set_steps(step_ = state.at("step"));
    schedule_.load(state.at("schedule"), ScheduleLoadRule::keep_flags);
  }

  Mesh mesh_;
  int64_t steps_;
  std::string directory_;
  Group stages_;
  TensorParallel parallel_;
  ParameterSet parameters_;
  Stage stage_;
  ParamAndGradBuffers buffers_;
  Optimizer optimizer_;
  OptimizerParamScheduler schedule_;
  int64_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, [](std::span<const std::string> args) {
    if (args.size() != 4) throw config_error({.what = "usage: own_loop TP PP STEPS DIR"});
    run_world(read_launch_env(process_environment), {}, [&](World& world) {
      const MeshOptions sizes{.tp = std::stoll(args[0]), .pp = std::stoll(args[1])};
      Training(Mesh(sizes, world), std::stoll(args[2]), args[3]).run();
    });
  });
}
