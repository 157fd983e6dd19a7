#include "teratron/nn/recurrent/state_passing.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"
#include "teratron/kernels/mamba/mamba_parts.h"
#include "teratron/nn/autograd/autograd.h"
#include "teratron/nn/tokens/contiguous_parts.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The convolution of x [S, B, C], before its activation.
struct ConvolutionFunction : torch::autograd::Function<ConvolutionFunction> {
  static mamba::Convolution of(const at::Tensor& x_SB, const at::Tensor& document_SB, const Parameter& weight,
                               const Parameter* bias) {
    return mamba::Convolution::of(mamba::as_wide(x_SB.transpose(0, 1)), {}, document_SB,
                                  weight.tensor.detach(), bias ? bias->tensor.detach() : at::Tensor());
  }
  struct Args {
    at::Tensor document_SB;  // may be undefined
    RecurrentCore::ConvolutionPart part;
  };
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_SB, const at::Tensor& /*anchor*/,
                            const Args& args) {
    const auto& [document_SB, part] = args;
    context->save_for_backward({x_SB, document_SB});
    save_pointer(context, "weight", part.weight);
    save_pointer(context, "bias", part.bias);
    return of(x_SB, document_SB, *part.weight, part.bias).forward().transpose(0, 1).to(x_SB.scalar_type());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    auto* const weight = saved_pointer<Parameter>(context, "weight");
    auto* const bias = saved_pointer<Parameter>(context, "bias");
    const mamba::Convolution::Gradients g =
        of(saved[0], saved[1], *weight, bias).backward(mamba::as_wide(gradients[0].transpose(0, 1)));
    accumulate_grad(*weight, g.dweight_CW.unsqueeze(1));
    if (bias) accumulate_grad(*bias, g.dbias_C);
    return {g.dinput_BSC.transpose(0, 1).to(saved[0].scalar_type()), at::Tensor(), at::Tensor()};
  }
};

// The part of rank `rank` and, before it, `halo` tokens, of a tensor of all ranks' tokens; for the first rank
// another document's.
at::Tensor documents_with_halo(const at::Tensor& document_SB, int64_t rank, int64_t tokens, int64_t halo) {
  if (rank > 0) return document_SB.narrow(0, rank * tokens - halo, tokens + halo);
  const at::Tensor own = document_SB.narrow(0, 0, tokens);
  return at::cat({at::full({halo, own.size(1)}, -1, own.options()), own});
}

// The convolution of this rank's part, which begins with the last inputs of the rank before.
at::Tensor convolve(const at::Tensor& x_SB, const RecurrentCore& core, const StatePassing& passing) {
  const RecurrentCore::ConvolutionPart conv = core.convolution();
  const Group& group = passing.context.group;
  const int64_t tokens = x_SB.size(0), halo = conv.weight->tensor.size(2) - 1;
  TERATRON_ASSERT(tokens >= halo, "{} tokens for a convolution over {}", tokens, halo + 1);
  const at::Tensor ends = all_gather(x_SB.narrow(0, tokens - halo, halo), 0, group);  // of all ranks
  const int64_t before = (group.rank + group.size - 1) % group.size;
  at::Tensor halo_SB = ends.narrow(0, before * halo, halo);
  if (group.rank == 0) halo_SB = halo_SB * 0;  // its gradient is needed by the collective
  at::Tensor document_SB;
  if (passing.document_SB.defined())
    document_SB = documents_with_halo(passing.document_SB, group.rank, tokens, halo);
  return ConvolutionFunction::apply(at::cat({halo_SB, x_SB}), grad_anchor({conv.weight, conv.bias}),
                                    ConvolutionFunction::Args{document_SB, conv})
      .narrow(0, halo, tokens);
}

// What the ranks know of each other's tokens.
struct Chain {
  Group group;
  at::Tensor transitions;  // [R, B, ...]
  at::Tensor joined_RB;    // whether rank r goes on with the document of the one before; undefined: all do

  at::Tensor of_others(const at::Tensor& state, int64_t rank) const {
    return joined_RB.defined() ? state * joined_RB[rank].view({-1, 1, 1, 1}).to(state.scalar_type()) : state;
  }
  // S_r of this rank.
  at::Tensor before(const RecurrentCore& core, const at::Tensor& added) const {
    at::Tensor state = at::zeros_like(added[0]);
    for (int64_t rank = 0; rank < group.rank; ++rank)
      state = of_others(core.apply(transitions[rank], state) + added[rank], rank + 1);
    return state;
  }
  // dS_(r+1) of this rank.
  at::Tensor after(const RecurrentCore& core, const at::Tensor& gradients) const {
    at::Tensor state = at::zeros_like(gradients[0]);
    for (int64_t rank = group.size - 1; rank > group.rank; --rank)
      state = of_others(core.apply_transposed(transitions[rank], state) + gradients[rank], rank);
    return state;
  }
  at::Tensor gathered(const at::Tensor& x) const {
    return all_gather_values(x.contiguous().unsqueeze(0), 0, group);
  }
};

struct PassingFunction : torch::autograd::Function<PassingFunction> {
  struct Args {
    const RecurrentCore* core;
    const StatePassing* passing;
  };

  static Chain chain_of(const RecurrentCore::Input& input, const Args& args) {
    const at::Tensor& document_SB = args.passing->document_SB;
    Chain chain{.group = args.passing->context.group};
    at::Tensor transition = args.core->transition(input);
    if (document_SB.defined()) {
      const at::Tensor parts = document_SB.unflatten(0, {chain.group.size, -1});
      const at::Tensor first_RB = parts.select(1, 0), last_RB = parts.select(1, parts.size(1) - 1);
      chain.joined_RB = first_RB.eq(last_RB.roll(1, 0));
      const at::Tensor through_B = first_RB[chain.group.rank].eq(last_RB[chain.group.rank]);
      transition = transition * through_B.view({-1, 1, 1, 1}).to(transition.scalar_type());
    }
    chain.transitions = chain.gathered(transition);
    return chain;
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& columns_SB,
                            const at::Tensor& /*anchor*/, const Args& args) {
    const Group& group = args.passing->context.group;
    at::Tensor document_SB;
    if (args.passing->document_SB.defined())
      document_SB = args.passing->document_SB.unflatten(0, {group.size, -1})[group.rank];
    const RecurrentCore::Input input{columns_SB, document_SB, {}, true};
    const RecurrentCore::Output alone = args.core->forward(input, {});
    const Chain chain = chain_of(input, args);
    const at::Tensor before = chain.before(*args.core, chain.gathered(alone.after.recurrent));
    context->save_for_backward({columns_SB, document_SB, before, chain.transitions, chain.joined_RB});
    save_pointer(context, "core", args.core);
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<HeldGroup>(group));
    return group.rank == 0 ? alone.y_SB : args.core->forward(input, {.recurrent = before}).y_SB;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto& core = *saved_pointer<const RecurrentCore>(context, "core");
    const auto capsule = context->saved_data["group"].toCapsule();
    const Chain chain{static_cast<const HeldGroup&>(*capsule).group, saved[3], saved[4]};
    const RecurrentCore::Input input{saved[0], saved[1], {}, true};
    const bool last = chain.group.rank == chain.group.size - 1;
    const RecurrentCore::Backward alone =
        core.backward(gradients[0], input, {.before = saved[2], .accumulates = last});
    const at::Tensor all = chain.gathered(alone.dbefore);
    if (last) return {alone.dcolumns_SB, at::Tensor(), at::Tensor()};
    const RecurrentCore::Ends ends{.before = saved[2], .dafter = chain.after(core, all)};
    return {core.backward(gradients[0], input, ends).dcolumns_SB, at::Tensor(), at::Tensor()};
  }

  struct HeldGroup : torch::CustomClassHolder {
    explicit HeldGroup(Group of) : group(std::move(of)) {}
    Group group;
  };
};

}  // namespace

at::Tensor recur_over_ranks(const at::Tensor& columns_SB, const RecurrentCore& core,
                            const StatePassing& passing) {
  const at::Tensor part_SB = to_contiguous(columns_SB, passing.context);
  const auto [first, count] = core.convolution().columns;
  const int64_t after = first + count;
  const at::Tensor convolved_SB =
      at::cat({part_SB.narrow(2, 0, first), convolve(part_SB.narrow(2, first, count), core, passing),
               part_SB.narrow(2, after, part_SB.size(2) - after)},
              2);
  const at::Tensor y_SB =
      PassingFunction::apply(convolved_SB, recurrent_anchor(core), PassingFunction::Args{&core, &passing});
  return from_contiguous(y_SB, passing.context);
}

}  // namespace teratron
