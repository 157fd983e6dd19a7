#include "teratron/nn/attention/head_norm.h"

#include <algorithm>

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"
#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class EachHeadNorm : public HeadNorm {
 public:
  // Replicated, but each rank sees only its own heads, so the gradients are summed over the ranks.
  EachHeadNorm(const Scope& scope, const HeadNormOptions& options, const Group& group)
      : norm_(scope, options.width, options.norm, TensorParallel{group, true}, options.weights) {}
  at::Tensor forward(const at::Tensor& x_SBND) override { return norm_.forward(x_SBND); }

 private:
  Norm norm_;
};

// Rows of weights that are cut as heads are.
Shard shard_of_heads(std::vector<int64_t> shape, int64_t rows_of_head, const HeadNormOptions& options,
                     const Group& group) {
  return options.heads < group.size
             ? Shard::split_groups(std::move(shape), {0, rows_of_head}, group.size, group.rank)
             : Shard::split(std::move(shape), 0, group.size, group.rank);
}

// Factor of weights that begin as ones.
at::Tensor factor(const at::Tensor& weight, const NormOptions& options) {
  return options.zero_centered ? weight + 1.0 : weight;
}

class OwnWeightNorm : public HeadNorm {
 public:
  OwnWeightNorm(const Scope& scope, const HeadNormOptions& options, const Group& group)
      : options_(options.norm),
        norm_(scope, options.width, options.norm, TensorParallel{group, true}, NormWeights::none),
        weight_ND_(scope.parameter(
            "weight", {.shard = shard_of_heads({options.heads, options.width}, 1, options, group),
                       .init = options.norm.zero_centered ? Init::zeros() : Init::ones(),
                       .param_group = ParamGroup::no_weight_decay})) {}

  at::Tensor forward(const at::Tensor& x_SBND) override {
    return norm_.forward(x_SBND) * factor(autograd_tensor(weight_ND_), options_);
  }

 private:
  NormOptions options_;
  Norm norm_;
  Parameter& weight_ND_;
};

at::ScalarType wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// y = xhat w with xhat = x / sqrt(avg(x^2) + eps), the average over the heads of all ranks.
struct AllHeadsNormFunction : torch::autograd::Function<AllHeadsNormFunction> {
  struct Args {
    Parameter* weight;  // of this rank's heads
    const Group* group;
    NormOptions options;
    double width;  // of all heads
  };

  static at::Tensor wide_factor(const at::Tensor& weight, const NormOptions& options) {
    return factor(weight.detach().to(wide(weight)), options);
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_SBF, const at::Tensor& /*anchor*/,
                            const Args& args) {
    const at::Tensor x = x_SBF.to(wide(x_SBF));
    const at::Tensor squares = reduce_from(x.square().sum(-1, true), *args.group);
    const at::Tensor rstd = (squares / args.width + args.options.eps).rsqrt();
    context->save_for_backward({x_SBF, rstd});
    save_pointer(context, "weight", args.weight);
    save_pointer(context, "group", args.group);
    context->saved_data["zero_centered"] = args.options.zero_centered;
    context->saved_data["width"] = args.width;
    return (x * rstd * wide_factor(args.weight->tensor, args.options)).to(args.weight->tensor.scalar_type());
  }

  // dx = rstd (g - xhat avg(g xhat)) with g = dy w
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    auto* const weight = saved_pointer<Parameter>(context, "weight");
    const Group& group = *saved_pointer<const Group>(context, "group");
    const NormOptions options{.zero_centered = context->saved_data["zero_centered"].toBool()};
    const at::Tensor& rstd = saved[1];
    const at::Tensor xhat = saved[0].to(rstd.scalar_type()) * rstd;
    const at::Tensor dy = gradients[0].to(rstd.scalar_type());
    const at::Tensor g = dy * wide_factor(weight->tensor, options);
    const at::Tensor product = reduce_from((g * xhat).sum(-1, true), group);
    accumulate_grad(*weight, (dy * xhat).flatten(0, -2).sum(0));
    const at::Tensor dx = rstd * (g - xhat * (product / context->saved_data["width"].toDouble()));
    return {dx.to(saved[0].scalar_type()), at::Tensor(), at::Tensor()};
  }
};

class AllHeadsNorm : public HeadNorm {
 public:
  AllHeadsNorm(const Scope& scope, const HeadNormOptions& options, const Group& group)
      : options_(options), group_(group) {
    TERATRON_ASSERT(options.norm.kind == NormKind::rms, "only an RMS norm is sharded over heads");
    weight_ = &scope.parameter(
        "weight", {.shard = shard_of_heads({options.heads * options.width}, options.width, options, group),
                   .init = options.norm.zero_centered ? Init::zeros() : Init::ones(),
                   .param_group = ParamGroup::no_weight_decay});
  }

  at::Tensor forward(const at::Tensor& x_SBND) override {
    register_use(*weight_);
    // Sums over the ranks have a head once for each of its ranks.
    const int64_t summed = std::max(options_.heads, group_.size) * options_.width;
    const AllHeadsNormFunction::Args args{weight_, &group_, options_.norm, static_cast<double>(summed)};
    return AllHeadsNormFunction::apply(x_SBND.flatten(-2), grad_anchor({weight_}), args)
        .unflatten(-1, {x_SBND.size(-2), options_.width});
  }

 private:
  HeadNormOptions options_;
  Group group_;
  Parameter* weight_;
};

}  // namespace

std::unique_ptr<HeadNorm> make_head_norm(const Scope& scope, const HeadNormOptions& options,
                                         const Group& group) {
  switch (options.kind) {
    case HeadNormKind::all_heads:
      return std::make_unique<AllHeadsNorm>(scope, options, group);
    case HeadNormKind::own_weight:
      return std::make_unique<OwnWeightNorm>(scope, options, group);
    case HeadNormKind::each_head:
      break;
  }
  return std::make_unique<EachHeadNorm>(scope, options, group);
}

}  // namespace teratron
