// A recurrence over sequences of which each context-parallel rank has a contiguous part of the tokens, and
// all heads. The tokens of rank r make M_r S + Z_r of the state S before them:
//
//   S_0 = 0,  S_(r+1) = M_r S_r + Z_r          dS_R = 0,  dS_r = M_r^T dS_(r+1) + G_r
//
// Z_r is what a state of zeros becomes, G_r the gradient of S_r through the rank's tokens. All ranks gather
// these, which are as large as states, and compute their sums; so each runs its tokens twice. The convolution
// reads the last inputs of the rank before. Where a document begins, states and convolution begin anew.
#pragma once

#include "teratron/nn/recurrent/recurrent_core.h"
#include "teratron/nn/tokens/context_cut.h"

namespace teratron {

struct StatePassing {
  const ContextParallel& context;
  at::Tensor document_SB;  // of the tokens of all ranks, in order; undefined: one in each sequence
};
/// columns [S, B, F] of this rank's chunks -> y [S, B, D] of them. Differentiable.
at::Tensor recur_over_ranks(const at::Tensor& columns_SB, const RecurrentCore& core,
                            const StatePassing& passing);

}  // namespace teratron
