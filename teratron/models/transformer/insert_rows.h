// Rows of another network, as of images, in the place of the embeddings of some tokens.
#pragma once

#include "teratron/nn/parallel_matmul.h"

namespace teratron {

/// x [S, B, H], S local under sequence parallelism, with row index_SB of `rows_RH` where that is not
/// negative. index_SB has all tokens that tensor-parallel ranks share, each row at most once; `rows_RH` are
/// the same on these ranks. The gradient of a row is that of its place, 0 for a row that has none here.
/// Nothing waits for the device, and nothing is added up, so results are reproducible.
at::Tensor insert_rows(const at::Tensor& x_SBH, const at::Tensor& rows_RH, const at::Tensor& index_SB,
                       const TensorParallel& parallel);

}  // namespace teratron
