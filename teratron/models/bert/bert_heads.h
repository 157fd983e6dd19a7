// The heads of a BERT, on the last pipeline stage: masked-language model and, of sentence pairs, pooler and
// binary head. Apart from the vocabulary projection they are replicated: each tensor-parallel rank computes
// them on the same rows.
#pragma once

#include <optional>

#include "teratron/models/bert/bert_config.h"
#include "teratron/nn/norm.h"

namespace teratron {

class BertHeads {
 public:
  /// `word_embeddings`: the projection's weight; null: its own.
  BertHeads(const Scope& root, const BertConfig& config, Parameter* word_embeddings,
            const TensorParallel& parallel);

  /// Hidden states of any positions [N, B, H], the same on all ranks -> [N, B, padded vocabulary / tp].
  at::Tensor lm_logits(const at::Tensor& x_NBH);
  /// Cross entropy [N, B] with the labels.
  at::Tensor lm_losses(const at::Tensor& x_NBH, const at::Tensor& labels_NB);
  /// [B, 2] of the hidden states [B, H] of the first position; only with a binary head.
  at::Tensor binary_logits(const at::Tensor& x_BH);

 private:
  at::Tensor transform(const at::Tensor& x_NBH);

  int64_t vocabulary_;
  bool tanh_gelu_;
  ColumnLinear dense_;
  Norm norm_;
  ParallelMatmul output_layer_;
  Parameter& output_bias_;
  struct Binary {
    ColumnLinear pooler;
    Parameter& weight;
    Parameter& bias;
  };
  std::optional<Binary> binary_;
};

}  // namespace teratron
