// LoRA (Hu et al. 2021): beside a frozen weight W [out, in], two small trained matrices,
//
//   y = x W^T + (alpha / rank) dropout(x) A^T B^T      A [rank, in] random, B [out, rank] zero at first
//
// A weight that holds several projections (queries, keys and values; gate and up) has one pair for all its
// rows, or one for each projection. In the latter case A is [parts * rank, in], and a row of B belongs to the
// A of its part. Rows of a projection without an adapter keep zeros in B.
//
// Tensor parallelism: B of a column-parallel weight is sharded as its rows, A of a row-parallel one as its
// columns; the other is replicated. Only [tokens, rank] is communicated.
//
// For use inside autograd functions, beside a ParallelMatmul. The weight's GEMMs add the products with B in
// forward and with A in backward (AddedProduct), so that no activation is read or written for the sum.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/kernels/pointwise/dropout.h"
#include "teratron/nn/lora_options.h"
#include "teratron/nn/parallel_matmul.h"

namespace torch::autograd {
struct AutogradContext;  // <torch/csrc/autograd/custom_function.h> would cost every source a second
}

namespace teratron {

struct DropoutArgs;

struct LoraShape {
  std::string name;  // of the layer: "linear_qkv"
  Shard weight;
  std::vector<LinearPart> parts = {};  // empty: one projection, with the layer's name
  AxisSet grad_sum = {};               // of a weight that is whole on every rank (ParameterOptions)
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

/// As PyTorch initializes A: the variance of a uniform distribution within 1 / sqrt(in).
Init lora_a_init(int64_t in);
/// [out, parts, 1] of this rank's rows of B: 1 where a row belongs to a part; undefined if one is shared.
at::Tensor lora_part_mask(const LoraParts& chosen, const std::vector<LinearPart>& parts, const Parameter& b);

class Lora {
 public:
  enum class Kind : uint8_t { column, row };
  /// Null if the options have no adapter for the layer. Parameters lora_A and lora_B, in `scope`.
  static std::shared_ptr<Lora> make(const Scope& scope, Kind kind, const LoraShape& shape,
                                    const TensorParallel& parallel);

  /// To be called by the caller of the autograd function.
  void register_uses() const;
  /// A; makes backward run.
  const at::Tensor& anchor() const { return a_->tensor; }

  /// What one forward keeps for its backward.
  struct Use {
    at::Tensor x_TI;               // the input, before dropout
    std::vector<int64_t> shape;    // of x [S, B, in]
    std::optional<Dropout> drops;  // of x; nullopt: none
    at::Tensor u_TP;               // (alpha / rank) dropout(x) A^T; rows as y's
    at::Tensor b_OP;               // B, a row's in the columns of its part, else zeros

    void save(torch::autograd::AutogradContext* context, const std::string& key) const;
    static Use saved(torch::autograd::AutogradContext* context, const std::string& key);
    /// What is added to y.
    AddedProduct added() const { return {u_TP, b_OP}; }
  };
  /// column: x [S, B, in], S local under sequence parallelism, for y [S, B, out / tp] with S global; row:
  /// x [S, B, in / tp] with S global for y [S, B, out] with S local. `where`: the dropout of the layer's
  /// input; null: none.
  Use forward(const at::Tensor& x, const DropoutArgs* where) const;
  /// Accumulates the gradients of A and B from dy [T, out], rows as y's, and returns the gradient of
  /// (dropout(x) A^T) [T, parts * rank], rows as x's.
  at::Tensor backward(const at::Tensor& dy_TO, const Use& use) const;
  /// What is added to dx, or to the gradient of dropout(x).
  AddedProduct added_to_input_grad(const at::Tensor& du_TP) const { return {du_TP, a_->tensor.t()}; }
  /// dx += dropout'(du A); dx [T, in].
  void add_input_grad_(const at::Tensor& dx_TI, const at::Tensor& du_TP, const Use& use) const;

 private:
  Lora(const Scope& scope, Kind kind, const LoraShape& shape, const TensorParallel& parallel);
  std::optional<Dropout> drops(const at::Tensor& x, const DropoutArgs* where) const;
  at::Tensor expanded_b() const;
  void accumulate_b_grad(const at::Tensor& dy_TO, const at::Tensor& u_TP) const;

  Kind kind_;
  TensorParallel parallel_;
  double scale_;
  double dropout_;
  uint64_t site_;
  int64_t in_;
  Parameter* a_;
  Parameter* b_;
  at::Tensor part_mask_OP1_;  // 1 where a row belongs to a part; undefined: one part
};

}  // namespace teratron
