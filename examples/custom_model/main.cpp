// A custom model under the library's training loop, data, optimizer and checkpoints. Instead of attention,
// each token averages itself and the tokens before it (average attention networks, Zhang, Xiong & Su 2018,
// without their gates).
//
//   custom_model pretrain average FLAGS...     (--tp, --pp and --use-distributed-optimizer work)
#include <functional>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/cli/program.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/nn/cost/embedding_cost.h"
#include "teratron/nn/cost/mlp_cost.h"
#include "teratron/nn/cost/norm_cost.h"
#include "teratron/nn/cost/output_layer_cost.h"
#include "teratron/nn/dropout.h"
#include "teratron/nn/embedding.h"
#include "teratron/nn/mlp.h"
#include "teratron/nn/norm.h"
#include "teratron/nn/vocab_parallel_cross_entropy.h"

using teratron::Activations;
using teratron::GPTConfig;
using teratron::Init;
using teratron::MicroBatch;
using teratron::Operator;
using teratron::Scope;
using teratron::StageContext;
using teratron::TensorParallel;

namespace {

// x [S, B, H]: row s becomes the mean of the rows 0..s.
at::Tensor mean_of_past(const at::Tensor& x_SBH) {
  const at::Tensor count_S = at::arange(1, x_SBH.size(0) + 1, x_SBH.options());
  return x_SBH.cumsum(0) / count_S.view({-1, 1, 1});
}

class Layer {
 public:
  Layer(const Scope& scope, const GPTConfig& config, const TensorParallel& parallel)
      : mixing_norm_(scope / "mixing_norm", config.hidden, config.norm, parallel),
        mlp_norm_(scope / "mlp_norm", config.hidden, config.norm, parallel),
        mlp_(scope / "mlp",
             {.hidden = config.hidden,
              .ffn_hidden = config.ffn_hidden,
              .activation = config.activation,
              .bias = false,
              .fc1_init = Init::normal(config.init_std),
              .fc2_init = Init::normal(config.init_std)},
             parallel) {}

  at::Tensor forward(const at::Tensor& x_SBH) {
    const at::Tensor h_SBH = x_SBH + mean_of_past(mixing_norm_.forward(x_SBH));
    return apply_bias_grad(
        mlp_.forward_add_residual(mlp_norm_.forward(h_SBH), {.residual_SBH = h_SBH, .dropout = {}}));
  }

 private:
  teratron::Norm mixing_norm_;
  teratron::Norm mlp_norm_;
  teratron::Mlp mlp_;
};

class AverageNetwork : public teratron::Model {
 public:
  AverageNetwork(const GPTConfig& config, const StageContext& part)
      : Model(part.stage), vocabulary_(config.vocabulary), parallel_(part.parallel) {
    const Scope root(part.parameters);
    const teratron::VocabularyOptions words{.size = config.vocabulary,
                                            .padded = config.padded_vocabulary,
                                            .hidden = config.hidden,
                                            .init = Init::normal(config.init_std)};
    if (part.stage.embedding) {
      embedding_ = std::make_unique<teratron::VocabParallelEmbedding>(root / "embedding", words, parallel_);
    }
    for (int64_t i = 0; i < part.stage.layers; ++i) {
      const Scope scope = root / "layers" / std::to_string(part.stage.first_layer + i);
      layers_.push_back(std::make_unique<Layer>(scope, config, parallel_));
    }
    if (!part.stage.head) return;
    last_norm_ = std::make_unique<teratron::Norm>(root / "last_norm", config.hidden, config.norm, parallel_);
    teratron::Parameter& weight =
        (root / "output")
            .parameter("weight", {.shard = vocabulary_shard(words, parallel_.group),
                                  .init = words.init,
                                  .param_group = teratron::ParamGroup::decoupled_lr});
    output_layer_.emplace(teratron::ParallelMatmul::column(weight, nullptr, parallel_));
  }

  Activations forward(const Activations& input, const MicroBatch& batch, teratron::LayerStates*) override {
    at::Tensor x_SBH = embedding_ ? embedding_->forward(batch["tokens"]) : input["hidden"];
    for (const auto& layer : layers_) x_SBH = layer->forward(x_SBH);
    return {{"hidden", last_norm_ ? last_norm_->forward(x_SBH) : x_SBH}};
  }

  at::Tensor logits(const Activations& output) override { return linear(output["hidden"], *output_layer_); }

  at::Tensor token_losses(const Activations& output, const MicroBatch& batch) override {
    return linear_cross_entropy(output["hidden"], *output_layer_, batch["labels"],
                                {.vocabulary = vocabulary_});
  }

 private:
  int64_t vocabulary_;
  TensorParallel parallel_;
  std::unique_ptr<teratron::VocabParallelEmbedding> embedding_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<teratron::Norm> last_norm_;
  std::optional<teratron::ParallelMatmul> output_layer_;
};

// The costs, for `plan`, MFU and out-of-memory messages; the library's layers state their own.
std::vector<Operator> operators(const GPTConfig& config, const teratron::RankBatch& batch,
                                const teratron::StageSpec& stage) {
  const teratron::RankSizes sizes({.width = config.hidden}, batch);
  const teratron::MlpOptions mlp{
      .hidden = config.hidden, .ffn_hidden = config.ffn_hidden, .activation = config.activation};
  std::vector<Operator> all;
  if (stage.embedding) all.push_back(embedding_operator(sizes));
  for (int64_t i = stage.first_layer; i < stage.first_layer + stage.layers; ++i) {
    const std::string name = fmt::format("layers.{}", i);
    all.push_back(norm_operator(name + ".mixing_norm", config.norm, sizes));
    // Reads x, writes the sums and the means; forward saves nothing but the S counts.
    all.push_back({.name = name + ".mean",
                   .bytes = 4.0 * sizes.hidden,
                   .forward_peak = 3.0 * sizes.hidden,
                   .backward_peak = 3.0 * sizes.hidden});
    all.push_back(norm_operator(name + ".mlp_norm", config.norm, sizes));
    all.push_back(mlp_operator(name + ".mlp", mlp, sizes));
  }
  if (!stage.head) return all;
  all.push_back(norm_operator("last_norm", config.norm, sizes));
  append(all, output_layer_operators({.width = config.hidden, .columns = config.padded_vocabulary}, sizes));
  return all;
}

void check(const teratron::Arguments& args, std::vector<teratron::Problem>& problems) {
  if (!args.sequence_parallel && !args.reset_attention_mask) return;
  problems.push_back({.what = "the mean is taken over whole samples",
                      .where = "sequence_parallel, reset_attention_mask",
                      .fix = "Leave these flags out"});
}

// GPT's settings and data, another model.
teratron::Family average_family() {
  teratron::Family family = teratron::gpt_family();
  family.name = "average";
  family.summary = "a language model that averages instead of attending";
  family.check = check;
  family.generates = false;  // its layers keep nothing of the tokens before
  family.plan = [gpt = family.plan](const teratron::Arguments& args, int64_t vocabulary) {
    teratron::ModelPlan plan = gpt(args, vocabulary);
    const GPTConfig config = teratron::gpt_config(args, vocabulary);
    plan.build = [config](const StageContext& part) {
      return std::make_unique<AverageNetwork>(config, part);
    };
    plan.operators = std::bind_front(operators, config);
    return plan;
  };
  return family;
}

}  // namespace

int main(int argc, char** argv) {
  return teratron::main(argc, argv, {.families = {average_family()}});
}
