#include "teratron/comm/collectives.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

/// The dimensions that a movement cuts and joins; those that it does not use are 0.
struct Dims {
  int64_t cut = 0;
  int64_t join = 0;
};

at::Tensor new_like(const at::Tensor& x, std::vector<int64_t> sizes) {
  return at::empty(sizes, x.options().memory_format(c10::nullopt));
}

int64_t wrapped(const at::Tensor& x, int64_t dim) {
  const int64_t result = dim < 0 ? dim + x.dim() : dim;
  TERATRON_ASSERT(result >= 0 && result < x.dim(), "dimension {} of {}", dim, x.dim());
  return result;
}

/// [..., n * part, ...] -> contiguous [n, ..., part, ...]; no copy for dim 0.
at::Tensor parts_of(const at::Tensor& x, int64_t dim, int64_t n) {
  TERATRON_ASSERT(x.size(dim) % n == 0, "{} cannot be cut into {} parts", x.size(dim), n);
  return x.unflatten(dim, {n, x.size(dim) / n}).movedim(dim, 0).contiguous();
}

/// [n, ..., part, ...] -> [..., n * part, ...]; no copy for dim 0.
at::Tensor joined(const at::Tensor& parts, int64_t dim) {
  return parts.movedim(0, dim).flatten(dim, dim + 1).contiguous();
}

// The movements, for groups of more than one. All return contiguous tensors.

at::Tensor same(const at::Tensor& x, Dims, const Group&) {
  return x.detach();
}

at::Tensor all_reduced(const at::Tensor& x, Dims, const Group& group) {
  at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  group.communicator->all_reduce(y, ReduceOp::sum).wait();
  return y;
}

at::Tensor gathered(const at::Tensor& x, Dims dims, const Group& group) {
  const int64_t dim = wrapped(x, dims.join);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] *= group.size;
  at::Tensor parts = new_like(x, sizes);
  group.communicator->all_gather(parts, x.contiguous()).wait();
  return dim == 0 ? parts : joined(parts.unflatten(0, {group.size, x.size(0)}), dim);
}

at::Tensor cut(const at::Tensor& x, Dims dims, const Group& group) {
  const int64_t dim = wrapped(x, dims.cut);
  TERATRON_ASSERT(x.size(dim) % group.size == 0, "{} cannot be cut into {} parts", x.size(dim), group.size);
  const int64_t part = x.size(dim) / group.size;
  return x.detach().narrow(dim, group.rank * part, part).contiguous().detach();
}

at::Tensor reduce_scattered(const at::Tensor& x, Dims dims, const Group& group) {
  const int64_t dim = wrapped(x, dims.cut);
  const at::Tensor parts = dim == 0 ? x.contiguous() : parts_of(x, dim, group.size);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[dim] /= group.size;
  at::Tensor y = new_like(x, sizes);
  group.communicator->reduce_scatter(y, parts, ReduceOp::sum).wait();
  return y;
}

at::Tensor exchanged(const at::Tensor& x, Dims dims, const Group& group) {
  const at::Tensor parts = parts_of(x, wrapped(x, dims.cut), group.size);
  at::Tensor received = at::empty_like(parts);
  group.communicator->all_to_all(received, parts).wait();
  return joined(received, wrapped(x, dims.join));
}

// A collective knows its adjoint by name, and the adjoint's adjoint is the collective itself: backward is the
// adjoint as a differentiable collective, so second derivatives need nothing more.
enum class Kind : uint8_t { copy_to, reduce_from, gather, split, all_gather, reduce_scatter, exchange };

struct Pair {
  const char* name;
  at::Tensor (*move)(const at::Tensor&, Dims, const Group&);
  Kind adjoint;
};

constexpr Pair kPairs[] = {
    {"copy_to", same, Kind::reduce_from},
    {"reduce_from", all_reduced, Kind::copy_to},
    {"gather", gathered, Kind::split},
    {"split", cut, Kind::gather},
    {"all_gather", gathered, Kind::reduce_scatter},
    {"reduce_scatter", reduce_scattered, Kind::all_gather},
    {"exchange", exchanged, Kind::exchange},
};

at::Tensor apply(Kind kind, const at::Tensor& x, Dims dims, const Group& group);

class Adjoint final : public torch::autograd::Node {
 public:
  Adjoint(Kind kind, Dims dims, const Group& group, torch::autograd::edge_list edges)
      : Node(std::move(edges)), kind_(kind), dims_(dims), group_(group) {}

  std::string name() const override {
    return std::string("AdjointOf_") + kPairs[static_cast<size_t>(kind_)].name;
  }

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    // Every rank takes part even where its gradient is zero.
    const at::Tensor y = gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like();
    // What was cut is joined and the other way round.
    return {teratron::apply(kPairs[static_cast<size_t>(kind_)].adjoint, y, {dims_.join, dims_.cut}, group_)};
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
    y = kPairs[static_cast<size_t>(kind)].move(x, dims, group);
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
at::Tensor gather(const at::Tensor& x, int64_t dim, const Group& group) {
  return apply(Kind::gather, x, {.join = dim}, group);
}
at::Tensor split(const at::Tensor& x, int64_t dim, const Group& group) {
  return apply(Kind::split, x, {.cut = dim}, group);
}
at::Tensor all_gather(const at::Tensor& x, int64_t dim, const Group& group) {
  return apply(Kind::all_gather, x, {.join = dim}, group);
}
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const Group& group) {
  return apply(Kind::reduce_scatter, x, {.cut = dim}, group);
}
at::Tensor exchange(const at::Tensor& x, int64_t scatter_dim, int64_t gather_dim, const Group& group) {
  return apply(Kind::exchange, x, {.cut = scatter_dim, .join = gather_dim}, group);
}

at::Tensor all_gather_values(const at::Tensor& x, int64_t dim, const Group& group) {
  const at::NoGradGuard no_grad;
  return apply(Kind::all_gather, x, {.join = dim}, group);
}
at::Tensor reduce_scatter_values(const at::Tensor& x, int64_t dim, const Group& group) {
  const at::NoGradGuard no_grad;
  return apply(Kind::reduce_scatter, x, {.cut = dim}, group);
}

}  // namespace teratron
