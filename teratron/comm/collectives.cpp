#include "teratron/comm/collectives.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

/// The dimensions that a collective splits and concatenates along; 0 where unused.
struct Dims {
  int64_t scatter = 0;
  int64_t gather = 0;
};

at::Tensor new_like(const at::Tensor& x, std::vector<int64_t> sizes) {
  return at::empty(sizes, x.options().memory_format(c10::nullopt));
}

/// [..., n * part, ...] -> contiguous [n, ..., part, ...]; no copy for dim 0.
at::Tensor split_parts(const at::Tensor& x, int64_t dim, int64_t n) {
  TERATRON_ASSERT(x.size(dim) % n == 0, "size {} is not divisible by {} ranks", x.size(dim), n);
  return x.unflatten(dim, {n, x.size(dim) / n}).movedim(dim, 0).contiguous();
}

/// [n, ..., part, ...] -> [..., n * part, ...]; no copy for dim 0.
at::Tensor concat_parts(const at::Tensor& parts, int64_t dim) {
  return parts.movedim(0, dim).flatten(dim, dim + 1).contiguous();
}

// Forward communication in groups of more than one rank. All return contiguous tensors.

at::Tensor identity(const at::Tensor& x, Dims, const Group&) {
  return x.detach();
}

at::Tensor run_all_reduce(const at::Tensor& x, Dims, const Group& group) {
  at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  group.communicator->all_reduce(y, ReduceOp::sum).wait();
  return y;
}

at::Tensor run_all_gather(const at::Tensor& x, Dims dims, const Group& group) {
  const int64_t dim = at::maybe_wrap_dim(dims.gather, x.dim());
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] *= group.size;
  at::Tensor parts = new_like(x, sizes);
  group.communicator->all_gather(parts, x.contiguous()).wait();
  return dim == 0 ? parts : concat_parts(parts.unflatten(0, {group.size, x.size(0)}), dim);
}

at::Tensor run_split(const at::Tensor& x, Dims dims, const Group& group) {
  const int64_t dim = at::maybe_wrap_dim(dims.scatter, x.dim());
  TERATRON_ASSERT(x.size(dim) % group.size == 0, "size {} is not divisible by {} ranks", x.size(dim),
                  group.size);
  const int64_t part = x.size(dim) / group.size;
  return x.detach().narrow(dim, group.rank * part, part).contiguous().detach();
}

at::Tensor run_reduce_scatter(const at::Tensor& x, Dims dims, const Group& group) {
  const int64_t dim = at::maybe_wrap_dim(dims.scatter, x.dim());
  const at::Tensor parts = dim == 0 ? x.contiguous() : split_parts(x, dim, group.size);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[dim] /= group.size;
  at::Tensor y = new_like(x, sizes);
  group.communicator->reduce_scatter(y, parts, ReduceOp::sum).wait();
  return y;
}

at::Tensor run_all_to_all(const at::Tensor& x, Dims dims, const Group& group) {
  const at::Tensor parts = split_parts(x, at::maybe_wrap_dim(dims.scatter, x.dim()), group.size);
  at::Tensor received = at::empty_like(parts);
  group.communicator->all_to_all(received, parts).wait();
  return concat_parts(received, at::maybe_wrap_dim(dims.gather, x.dim()));
}

// Backward runs the adjoint as a differentiable collective, so second derivatives work too.
enum class Kind : uint8_t {
  copy_to,
  reduce_from,
  gather_from,
  scatter_to,
  all_gather,
  reduce_scatter,
  all_to_all
};

struct Collective {
  const char* name;
  at::Tensor (*forward)(const at::Tensor&, Dims, const Group&);
  Kind adjoint;
};

constexpr Collective kCollectives[] = {
    {"copy_to", identity, Kind::reduce_from},
    {"reduce_from", run_all_reduce, Kind::copy_to},
    {"gather_from", run_all_gather, Kind::scatter_to},
    {"scatter_to", run_split, Kind::gather_from},
    {"all_gather", run_all_gather, Kind::reduce_scatter},
    {"reduce_scatter", run_reduce_scatter, Kind::all_gather},
    {"all_to_all", run_all_to_all, Kind::all_to_all},
};

at::Tensor apply(Kind kind, const at::Tensor& x, Dims dims, const Group& group);

class Adjoint final : public torch::autograd::Node {
 public:
  Adjoint(Kind kind, Dims dims, const Group& group, torch::autograd::edge_list edges)
      : Node(std::move(edges)), kind_(kind), dims_(dims), group_(group) {}

  std::string name() const override {
    return std::string("AdjointOf_") + kCollectives[static_cast<size_t>(kind_)].name;
  }

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    // Collective: every rank must take part, even if its gradient is undefined.
    const at::Tensor y = gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like();
    return {teratron::apply(kCollectives[static_cast<size_t>(kind_)].adjoint, y,
                            {dims_.gather, dims_.scatter}, group_)};
  }

 private:
  Kind kind_;
  Dims dims_;
  Group group_;
};

at::Tensor apply(Kind kind, const at::Tensor& x, Dims dims, const Group& group) {
  if (group.size == 1) return x;
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = kCollectives[static_cast<size_t>(kind)].forward(x, dims, group);
  }
  if (at::GradMode::is_enabled() && x.requires_grad()) {
    auto node = std::shared_ptr<Adjoint>(
        new Adjoint(kind, dims, group, torch::autograd::collect_next_edges(x)), torch::autograd::deleteNode);
    torch::autograd::set_history(y, node);
  }
  return y;
}

}  // namespace

at::Tensor copy_to(const at::Tensor& x, const Group& group) {
  return apply(Kind::copy_to, x, {}, group);
}
at::Tensor reduce_from(const at::Tensor& x, const Group& group) {
  return apply(Kind::reduce_from, x, {}, group);
}
at::Tensor gather_from(const at::Tensor& x, int64_t dim, const Group& group) {
  return apply(Kind::gather_from, x, {.gather = dim}, group);
}
at::Tensor scatter_to(const at::Tensor& x, int64_t dim, const Group& group) {
  return apply(Kind::scatter_to, x, {.scatter = dim}, group);
}
at::Tensor all_gather(const at::Tensor& x, int64_t dim, const Group& group) {
  return apply(Kind::all_gather, x, {.gather = dim}, group);
}
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const Group& group) {
  return apply(Kind::reduce_scatter, x, {.scatter = dim}, group);
}
at::Tensor all_to_all(const at::Tensor& x, int64_t scatter_dim, int64_t gather_dim, const Group& group) {
  return apply(Kind::all_to_all, x, {.scatter = scatter_dim, .gather = gather_dim}, group);
}

at::Tensor all_gather_values(const at::Tensor& x, int64_t dim, const Group& group) {
  const at::NoGradGuard no_grad;
  return apply(Kind::all_gather, x, {.gather = dim}, group);
}

}  // namespace teratron
