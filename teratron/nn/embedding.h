// Embeddings of token ids and positions.
#pragma once

#include "teratron/nn/linear.h"

namespace teratron {

struct VocabularyOptions {
  int64_t size = 0;    // logical
  int64_t padded = 0;  // what is cut over the ranks; the rows beyond `size` are never looked up
  int64_t hidden = 0;
  Init init;
};

/// The shard of a vocabulary matrix [size, hidden], cut along its rows.
Shard vocabulary_shard(const VocabularyOptions& options, const Group& group);

/// Word embeddings, rows cut over the tensor-parallel ranks: every rank looks up the ids it holds and the
/// partial results (zeros elsewhere) are summed.
class VocabParallelEmbedding {
 public:
  VocabParallelEmbedding(const Scope& scope, const VocabularyOptions& options,
                         const TensorParallel& parallel);
  /// ids [S, B], S whole -> [S, B, hidden], S local under sequence parallelism.
  at::Tensor forward(const at::Tensor& ids_SB);
  Parameter& weight() { return *weight_; }

 private:
  TensorParallel parallel_;
  Parameter* weight_;
};

/// Rows of a replicated matrix [count, hidden]: learned positions, token types.
class Embedding {
 public:
  struct Options {
    int64_t count = 0;
    int64_t hidden = 0;
    Init init;
  };
  Embedding(const Scope& scope, const Options& options, const TensorParallel& parallel);
  /// x + the rows of ids [S, B], of this rank's part of the sequence; in x's place, contiguous, which nobody else may need.
  /// Ids that all samples share (stride 0 of B) are looked up once.
  at::Tensor add_to_(const at::Tensor& x_SBH, const at::Tensor& ids_SB);

 private:
  Parameter* weight_;
};

}  // namespace teratron
