// Hidden states of some positions, for heads that do not see all tokens.
#pragma once

#include "teratron/nn/parallel_matmul.h"
#include "teratron/nn/tokens/context_cut.h"
#include "teratron/nn/tokens/packed_rows.h"

namespace teratron {

/// Where the tokens of hidden states are: [S, B, H], S local under sequence parallelism and context
/// parallelism, or packed rows [T, 1, H].
struct TokenPlaces {
  PackedRows packed = {};
  ContextParallel context_parallel = {};
};

/// The hidden states [N, B, H] at `positions` [N, B] of each sample, on every tensor- and context-parallel
/// rank.
at::Tensor select_positions(const at::Tensor& hidden_SBH, const at::Tensor& positions_NB,
                            const TensorParallel& parallel, const TokenPlaces& places = {});
/// Context-parallel rank r has the r-th part of the N, a multiple of their number: [N / ranks, B, H].
at::Tensor select_own_positions(const at::Tensor& hidden_SBH, const at::Tensor& positions_NB,
                                const TensorParallel& parallel, const TokenPlaces& places);

}  // namespace teratron
