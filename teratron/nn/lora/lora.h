// LoRA (Hu et al. 2021): beside a frozen weight W [out, in], two small trained matrices,
//
//   y = x W^T + (alpha / rank) dropout(x) A^T B^T      A [rank, in] random, B [out, rank] zero at first
//
// A weight that holds several projections (queries, keys and values; gate and up) has one pair for all its
// rows, or one for each projection: then A is [parts * rank, in], and a row of B belongs to the A of its
// part. Rows of a projection without an adapter keep zeros in B.
//
// Tensor parallelism: B of a column-parallel weight is sharded as its rows, A of a row-parallel one as its
// columns; the other is replicated. Only [tokens, rank] is communicated.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "teratron/nn/lora/lora_options.h"
#include "teratron/nn/parallel_matmul.h"

namespace teratron {

struct DropoutArgs;

struct LoraShape {
  std::string name;  // of the layer: "linear_qkv"
  Shard weight;
  std::vector<LinearPart> parts = {};  // empty: one projection, with the layer's name
};

/// The adapters of a weight: one for all its rows, or one for each of some projections.
struct LoraParts {
  bool shared = false;
  std::vector<std::string> names;  // in the order of their A
  bool empty() const { return names.empty(); }
};
LoraParts lora_parts(const LoraOptions& options, const std::string& layer,
                     const std::vector<LinearPart>& parts);
/// Part of each of `rows`, rows of the global weight; -1: none.
std::vector<int64_t> part_of_rows(const LoraParts& chosen, const std::vector<LinearPart>& parts,
                                  const std::vector<int64_t>& rows);

class Lora {
 public:
  enum class Kind : uint8_t { column, row };
  /// Null if the options have no adapter for the layer. Parameters lora_A and lora_B, in `scope`.
  static std::shared_ptr<Lora> make(const Scope& scope, Kind kind, const LoraShape& shape,
                                    const TensorParallel& parallel);

  /// What the adapter adds to y. column: x [S, B, in], S local under sequence parallelism, to
  /// [S, B, out / tp] with S global; row: x [S, B, in / tp] with S global to [S, B, out] with S local.
  /// `where`: the dropout of the layer's input; null: none.
  at::Tensor forward(const at::Tensor& x, const DropoutArgs* where) const;

 private:
  Lora(const Scope& scope, Kind kind, const LoraShape& shape, const TensorParallel& parallel);
  at::Tensor reduced(const at::Tensor& x) const;
  at::Tensor expanded_b() const;

  Kind kind_;
  TensorParallel parallel_;
  double scale_;
  double dropout_;
  uint64_t site_;
  int64_t in_;
  Parameter* a_;
  Parameter* b_;
  at::Tensor part_mask_OP_;  // 1 where a row belongs to a part; undefined: one part
};

}  // namespace teratron
