// Differentiable collectives: an operation and its adjoint are one object.
//
// The space of a value says how the ranks of a group see it:
//   R  replicated: one logical value, the same on every rank, counted once
//   V  varying: one value per rank, counted per rank (partial sums)
//   S  sharded along a dimension: the value is the concatenation
//
//   copy_to         R -> V  identity            backward: all_reduce
//   reduce_from     V -> R  all_reduce          backward: identity
//   gather          S -> R  all_gather          backward: split
//   split           R -> S  split               backward: all_gather
//   all_gather      S -> V  all_gather          backward: reduce_scatter
//   reduce_scatter  V -> S  reduce_scatter      backward: all_gather
//   exchange        S -> S  all_to_all          backward: all_to_all
//
// For each pair inner(f(x), y) == inner(x, f*(y)), a value in R counted once (Korthikanti et al. 2022 give
// the first six as f, f-bar, g and g-bar). With a group of one each returns its argument.
// copy_to, and split along dimension 0, return memory of their argument: do not write into the result.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/comm/mesh/mesh.h"

namespace teratron {

at::Tensor copy_to(const at::Tensor& x, const Group& group);
at::Tensor reduce_from(const at::Tensor& x, const Group& group);
at::Tensor gather(const at::Tensor& x, int64_t dim, const Group& group);
at::Tensor split(const at::Tensor& x, int64_t dim, const Group& group);
at::Tensor all_gather(const at::Tensor& x, int64_t dim, const Group& group);
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const Group& group);
/// x is cut into group.size equal parts along `scatter_dim`; the parts received are joined along
/// `gather_dim`.
at::Tensor exchange(const at::Tensor& x, int64_t scatter_dim, int64_t gather_dim, const Group& group);

// The same movements without autograd, for use inside backward functions.
at::Tensor all_gather_values(const at::Tensor& x, int64_t dim, const Group& group);
at::Tensor reduce_scatter_values(const at::Tensor& x, int64_t dim, const Group& group);

}  // namespace teratron
