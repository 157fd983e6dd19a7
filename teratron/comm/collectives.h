// Differentiable collectives. Each is a forward communication paired with its adjoint.
//
// The space of a value says how the ranks of a group see it:
//   R  replicated: one logical value, identical on every rank, counted once
//   V  varying: one value per rank, counted per rank (partial sums)
//   S  sharded along a dimension: the value is the concatenation
//
//   function        spaces  forward         backward
//   copy_to         R -> V  identity        all_reduce
//   reduce_from     V -> R  all_reduce      identity
//   gather_from     S -> R  all_gather      split
//   scatter_to      R -> S  split           all_gather
//   all_gather      S -> V  all_gather      reduce_scatter
//   reduce_scatter  V -> S  reduce_scatter  all_gather
//   all_to_all      S -> S  all_to_all      all_to_all
//
// Each pair satisfies inner(f(x), y) == inner(x, f*(y)), where a value in R counts once. The first six are
// the f, f-bar, g and g-bar of Korthikanti et al. 2022. In a group of one rank every function returns its
// argument. copy_to, and scatter_to along dim 0, return views of their argument: do not write into the
// result.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/comm/mesh/mesh.h"

namespace teratron {

at::Tensor copy_to(const at::Tensor& x, const Group& group);
at::Tensor reduce_from(const at::Tensor& x, const Group& group);
at::Tensor gather_from(const at::Tensor& x, int64_t dim, const Group& group);
at::Tensor scatter_to(const at::Tensor& x, int64_t dim, const Group& group);
at::Tensor all_gather(const at::Tensor& x, int64_t dim, const Group& group);
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const Group& group);
/// Splits x into group.size equal parts along `scatter_dim` and concatenates the received parts along
/// `gather_dim`.
at::Tensor all_to_all(const at::Tensor& x, int64_t scatter_dim, int64_t gather_dim, const Group& group);

/// all_gather without autograd, for use inside backward functions.
at::Tensor all_gather_values(const at::Tensor& x, int64_t dim, const Group& group);

}  // namespace teratron
