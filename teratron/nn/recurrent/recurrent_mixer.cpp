#include "teratron/nn/recurrent/recurrent_mixer.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/comm/collectives.h"
#include "teratron/nn/autograd/autograd.h"
#include "teratron/nn/multipliers.h"
#include "teratron/nn/recurrent/state_passing.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Saves its input alone.
struct RecurrentFunction : torch::autograd::Function<RecurrentFunction> {
  struct Args {
    const RecurrentCore* core;
    at::Tensor document_SB;  // may be undefined
    HeadPart part;
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& columns_SB,
                            const at::Tensor& /*anchor*/, const Args& args) {
    context->save_for_backward({columns_SB, args.document_SB});
    context->saved_data["part"] = args.part.index;
    context->saved_data["parts"] = args.part.count;
    save_pointer(context, "core", args.core);
    return args.core->forward({columns_SB, args.document_SB, args.part}, {}).y_SB;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const HeadPart part{context->saved_data["part"].toInt(), context->saved_data["parts"].toInt()};
    const auto* const core = saved_pointer<const RecurrentCore>(context, "core");
    return {core->backward(gradients[0], {saved[0], saved[1], part}, {}).dcolumns_SB, at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

RecurrentMixer::RecurrentMixer(const Scope& scope, const RecurrentMixerOptions& options,
                               const TensorParallel& parallel, std::unique_ptr<const RecurrentCore> core)
    : options_(options),
      segments_(options.segments),
      tensors_(scope.options().tensors()),
      in_(scope / "in_proj",
          {.in = options.hidden,
           .out = std::accumulate(options.segments.begin(), options.segments.end(), int64_t{0}),
           .bias = options.bias,
           .init = options.in_init,
           .segments = options.segments},
          parallel),
      core_(std::move(core)),
      out_(scope / "out_proj",
           {.in = options.inner, .out = options.hidden, .bias = options.bias, .init = options.out_init},
           parallel) {
  for (int64_t& segment : segments_) segment /= parallel.group.size;
}

Hidden RecurrentMixer::forward_add_residual(const Normed& normed_SBH, const ResidualDropout& residual,
                                            const LayerContext& context, LayerState* state) {
  at::Tensor columns_SB = apply_bias_grad(in_.forward(normed_SBH.tensor(), nullptr, &residual.dropout));
  if (!options_.multipliers.empty()) columns_SB = scale_parts(columns_SB, segments_, options_.multipliers);
  for (Parameter* parameter : core_->parameters()) register_use(*parameter);
  const at::Tensor y_SB =
      state ? generate(columns_SB, context, static_cast<LayerStates&>(*state)) : train(columns_SB, context);
  return out_.forward_add_residual(y_SB, residual);
}

at::Tensor RecurrentMixer::train(const at::Tensor& columns_SB, const LayerContext& context) const {
  const ContextParallel& cut = context.context_parallel;
  const auto recur = [&](const at::Tensor& columns, const HeadPart& part) {
    const RecurrentFunction::Args args{
        core_.get(), segments_of_tokens(context.segments, columns.size(0), columns.size(1)), part};
    return RecurrentFunction::apply(columns, recurrent_anchor(*core_), args);
  };
  if (cut.size() == 1) return recur(columns_SB, {});
  if (options_.passes_states) {
    const at::Tensor document_SB =
        segments_of_tokens(context.segments, columns_SB.size(0) * cut.size(), columns_SB.size(1));
    return recur_over_ranks(columns_SB, *core_, {cut, document_SB});
  }
  // All tokens of some heads in place of some tokens of all heads.
  Slices sent;
  for (int64_t rank = 0; rank < cut.size(); ++rank) {
    const Slices of_rank = core_->columns_of({rank, cut.size()});
    sent.insert(sent.end(), of_rank.begin(), of_rank.end());
  }
  const at::Tensor heads_SB = permute_tokens(all_to_all(take(columns_SB, 2, sent), 2, 0, cut.group),
                                             cut.cut->order, cut.cut->inverse_order);
  const at::Tensor y_SB = recur(heads_SB, {cut.group.rank, cut.size()});
  const at::Tensor back_SB =
      all_to_all(permute_tokens(y_SB, cut.cut->inverse_order, cut.cut->order), 0, 2, cut.group);
  return core_->finish(back_SB, columns_SB);
}

at::Tensor RecurrentMixer::generate(const at::Tensor& columns_T1, const LayerContext& context,
                                    LayerStates& states) const {
  const StateRows rows = slot_rows(context);
  const at::Tensor& conv = static_cast<SlotState&>(*states[0]).table();
  const at::Tensor& recurrent = static_cast<SlotState&>(*states[1]).table();
  const GenerationBatch& batch = *context.generation;
  const int64_t tokens = columns_T1.size(0), steps = batch.decode_rows;
  if (batch.has_single_tokens(tokens))
    return core_->step(columns_T1.squeeze(1), {conv, recurrent, rows}).unsqueeze(1);
  std::vector<at::Tensor> y;
  if (steps > 0) {
    const at::Tensor columns_R = columns_T1.narrow(0, 0, steps).squeeze(1);
    y.push_back(core_->step(columns_R, {conv, recurrent, rows.narrow(0, steps)}).unsqueeze(1));
  }
  for (int64_t r = steps; r < std::ssize(batch.rows); ++r) {
    const GenerationRow& row = batch.rows[r];
    const StateRows own = rows.narrow(r, 1);
    const RecurrentCore::Output prompt = core_->forward({columns_T1.narrow(0, row.first_token, row.tokens)},
                                                        {own.read(conv), own.read(recurrent)});
    y.push_back(prompt.y_SB);
    own.write(conv, prompt.after.conv);
    own.write(recurrent, prompt.after.recurrent);
  }
  return at::cat(y);
}

std::unique_ptr<LayerState> RecurrentMixer::make_state(LayerState* /*before*/) const {
  const auto model = c10::typeMetaToScalarType(tensors_.dtype());
  const at::ScalarType wide = model == at::kDouble ? at::kDouble : at::kFloat;
  auto states = std::make_unique<LayerStates>();
  states->add(std::make_unique<SlotState>(core_->conv_shape(),
                                          tensors_.dtype(options_.conv_state_dtype.value_or(model))));
  states->add(std::make_unique<SlotState>(core_->recurrent_shape(),
                                          tensors_.dtype(options_.recurrent_state_dtype.value_or(wide))));
  return states;
}

}  // namespace teratron
