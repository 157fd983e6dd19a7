// Costs of linear layers (linear.h).
#pragma once

#include "teratron/nn/cost/rank_sizes.h"

namespace teratron {

/// y [tokens, out] = x [tokens, in] W^T: FLOPs and bytes.
Operator gemm_operator(std::string name, const RankSizes& sizes, double in, double out);

/// A column layer of hidden states, whose output is [tokens, out] on this rank; without its neighbours.
Operator column_operator(std::string name, const RankSizes& sizes, double out, bool fp8);
/// A row layer [tokens, in] on this rank, whose output is added to the residual stream.
Operator row_operator(std::string name, const RankSizes& sizes, double in, bool fp8);

/// Bytes that the input [tokens, width] of a column layer leaves for the weight gradient.
double column_input(const RankSizes& sizes, double width, bool fp8);
/// Bytes that the input [tokens, width] of a row layer leaves for the weight gradient.
double row_input(const RankSizes& sizes, double width, bool fp8);
/// Bytes of a row layer's output, and after dropout or a reduction of its sum with the residual.
double row_output(const RankSizes& sizes);
/// Bytes that the residual stream's gradient needs on its way into a row layer.
double row_gradient(const RankSizes& sizes);
/// Bytes of the FP8 copies of an output gradient of `bytes`; 0 without FP8.
double cast_gradient(const RankSizes& sizes, double bytes);

}  // namespace teratron
