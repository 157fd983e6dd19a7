#include "teratron/models/bert/bert_heads.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/nn/embedding.h"
#include "teratron/nn/vocab_parallel_cross_entropy.h"

namespace teratron {

namespace {

// For layers that all tensor-parallel ranks compute on the same rows, so that gradients agree without a sum.
const TensorParallel replicated;

VocabularyOptions vocabulary_options(const BertConfig& config) {
  return {.size = config.vocabulary,
          .padded = config.padded_vocabulary,
          .hidden = config.hidden,
          .init = weight_init(config)};
}

LinearOptions square(const BertConfig& config) {
  return {.in = config.hidden, .out = config.hidden, .init = weight_init(config)};
}

Parameter& output_weight(const Scope& root, const BertConfig& config, const Group& group) {
  return (root / "output_layer")
      .parameter("weight", {.shard = vocabulary_shard(vocabulary_options(config), group),
                            .init = weight_init(config),
                            .param_group = ParamGroup::decoupled_lr});
}

Parameter& output_bias(const Scope& root, const BertConfig& config, const Group& group) {
  const Shard shard =
      Shard::split_padded({config.vocabulary}, 0, config.padded_vocabulary, group.size, group.rank);
  return (root / "output_layer")
      .parameter("bias", {.shard = shard, .param_group = ParamGroup::no_weight_decay});
}

}  // namespace

BertHeads::BertHeads(const Scope& root, const BertConfig& config, Parameter* word_embeddings,
                     const TensorParallel& parallel)
    : vocabulary_(config.vocabulary),
      tanh_gelu_(config.tanh_head_gelu),
      dense_(root / "lm_head" / "dense", square(config), replicated),
      norm_(root / "lm_head" / "layer_norm", config.hidden, config.norm, replicated),
      output_layer_(ParallelMatmul::column(
          word_embeddings ? *word_embeddings : output_weight(root, config, parallel.group), nullptr,
          {parallel.group})),
      output_bias_(output_bias(root, config, parallel.group)) {
  if (!config.binary_head) return;
  const Scope heads = config.learns_pairs ? root : root.frozen(), binary = heads / "binary_head";
  binary_.emplace(Binary{ColumnLinear(heads / "pooler" / "dense", square(config), replicated),
                         binary.parameter("weight", {.shard = Shard::replicated({2, config.hidden}),
                                                     .init = weight_init(config)}),
                         binary.parameter("bias", {.shard = Shard::replicated({2}),
                                                   .param_group = ParamGroup::no_weight_decay})});
}

at::Tensor BertHeads::transform(const at::Tensor& x_NBH) {
  const at::Tensor y_NBH = apply_bias_grad(dense_.forward(x_NBH));
  return norm_.forward(at::gelu(y_NBH, tanh_gelu_ ? "tanh" : "none"));
}

at::Tensor BertHeads::lm_logits(const at::Tensor& x_NBH) {
  return apply_bias_grad({linear(transform(x_NBH), output_layer_, {.bias = &output_bias_}), &output_bias_});
}

at::Tensor BertHeads::lm_losses(const at::Tensor& x_NBH, const at::Tensor& labels_NB) {
  return linear_cross_entropy(transform(x_NBH), output_layer_, labels_NB,
                              {.vocabulary = vocabulary_, .bias = &output_bias_});
}

at::Tensor BertHeads::binary_logits(const at::Tensor& x_BH) {
  TERATRON_ASSERT(binary_, "no binary head");
  const at::Tensor pooled_BH = apply_bias_grad(binary_->pooler.forward(x_BH)).tanh();
  return at::linear(pooled_BH, autograd_tensor(binary_->weight), autograd_tensor(binary_->bias));
}

}  // namespace teratron
