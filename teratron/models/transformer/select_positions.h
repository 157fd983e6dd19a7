// Hidden states of some positions, for heads that do not see all tokens.
#pragma once

#include "teratron/nn/parallel_matmul.h"
#include "teratron/nn/tokens/packed_rows.h"

namespace teratron {

/// The hidden states [N, B, H] at `positions` [N, B] of each sample, on every tensor-parallel rank. They come
/// from [S, B, H], S local under sequence parallelism, or from packed rows [T, 1, H].
at::Tensor select_positions(const at::Tensor& hidden_SBH, const at::Tensor& positions_NB,
                            const TensorParallel& parallel, const PackedRows& packed = {});

}  // namespace teratron
