// Embeddings of token ids and positions.
#pragma once

#include "teratron/nn/linear.h"

namespace teratron {

struct VocabularyOptions {
  int64_t size = 0;    // logical
  int64_t padded = 0;  // rows sharded over the ranks; those beyond `size` are never looked up
  int64_t hidden = 0;
  Init init;
};

/// The shard of a vocabulary matrix [size, hidden] by rows.
Shard vocabulary_shard(const VocabularyOptions& options, const Group& group);

/// Word embeddings, rows sharded over the tensor-parallel ranks: every rank looks up the ids it holds (zeros
/// elsewhere), and the partial results are summed. --decoupled-lr applies to them.
class VocabParallelEmbedding {
 public:
  VocabParallelEmbedding(const Scope& scope, const VocabularyOptions& options,
                         const TensorParallel& parallel);
  /// ids [S, B], S global -> [S, B, hidden], S local under sequence parallelism.
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
    int64_t first = 0;  // the row of id 0
  };
  Embedding(const Scope& scope, const Options& options, const TensorParallel& parallel);
  /// x + rows of ids [S, B], both of this rank's sequence shard; in place, for contiguous x. Ids shared by
  /// all samples (stride 0 along B) are looked up once.
  at::Tensor add_to_(const at::Tensor& x_SBH, const at::Tensor& ids_SB);

 private:
  Parameter* weight_;
  int64_t first_;
};

}  // namespace teratron
