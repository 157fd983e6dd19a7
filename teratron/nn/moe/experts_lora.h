// LoRA adapters of a linear layer of experts (nn/lora.h): each expert has an A and a B, as in PEFT,
// where each expert is a module.
//
//   y_r += (alpha / rank) x_r A_e^T B_e^T      r: row of expert e
//
// Expert tensor parallelism needs no communication: y and dx are this rank's parts of sums, to which the
// products belong. A of a column-parallel layer, and B of a row-parallel one, are replicated, and their
// gradients are summed over the expert tensor-parallel group.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/nn/lora.h"
#include "teratron/nn/moe/grouped_gemm.h"

namespace teratron {

class ExpertsLora {
 public:
  struct Options {
    LoraOptions lora;  // without dropout
    LoraShape layer;   // of one expert
    Lora::Kind kind = Lora::Kind::column;
  };
  /// Creates a parameter of each local expert.
  using Create = std::function<ExpertParameters(const char* name, const ParameterOptions& options)>;
  /// Null if the options have no adapter for the layer.
  static std::unique_ptr<ExpertsLora> make(const Options& options, const Group& tensor, const Create& create);

  /// Adds the products to y [R, out]; x [R, in], rows sorted by expert as those of `gemm`.
  void add_(at::Tensor y_RO, const at::Tensor& x_RI, const GroupedGemm& gemm) const;
  /// Accumulates the gradients of A and B; adds to dx [R, in].
  void backward_(at::Tensor dx_RI, const at::Tensor& dy_RO, const at::Tensor& x_RI,
                 const GroupedGemm& gemm) const;

 private:
  ExpertsLora(const Options& options, const Group& tensor, const Create& create);
  ExpertWeights a() const;
  ExpertWeights b() const;

  double scale_;
  ExpertParameters a_, b_;    // [parts * rank, in], [out, rank]
  at::Tensor part_mask_OP1_;  // 1 where a row belongs to a part; undefined: one part
};

}  // namespace teratron
