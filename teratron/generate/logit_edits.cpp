#include "teratron/generate/logit_edits.h"

#include <cmath>
#include <map>

#include <ATen/ATen.h>

namespace teratron {

namespace {

constexpr double dropped_logit = -1e30;  // finite, also when it is divided by a temperature

bool joins_filters(const SamplingOptions& options) {
  return options.top_k > 1 && options.top_p > 0.0;
}

// [V] of one row.
at::Tensor edited_tokens(const at::Tensor& logits_V, const std::vector<TokenEdit>& edits) {
  std::vector<int64_t> ids;
  std::vector<double> bias, penalty, taken;
  for (const TokenEdit& each : edits) {
    if (each.id < 0 || each.id >= logits_V.size(0)) continue;
    ids.push_back(each.id);
    bias.push_back(each.bias);
    penalty.push_back(each.penalty);
    taken.push_back(each.taken);
  }
  const auto on_device = [&](const auto& values, at::ScalarType type) {
    return at::tensor(values, type).to(logits_V.device());
  };
  const at::Tensor at_ids = on_device(ids, at::kLong), factor = on_device(penalty, at::kDouble);
  const at::Tensor biased = logits_V.index_select(0, at_ids).to(at::kDouble) + on_device(bias, at::kDouble);
  const at::Tensor changed =
      at::where(biased.gt(0), biased / factor, biased * factor) - on_device(taken, at::kDouble);
  return logits_V.index_copy(0, at_ids, changed.to(logits_V.scalar_type()));
}

at::Tensor allowed_tokens(const at::Tensor& logits_V, const TokenMask& allowed) {
  const at::Tensor mask_V =
      at::from_blob(const_cast<uint8_t*>(allowed.data()), {static_cast<int64_t>(allowed.size())}, at::kByte)
          .to(logits_V.device(), at::kBool);
  return logits_V.masked_fill(mask_V.logical_not(), dropped_logit);
}

at::Tensor filtered_row(const at::Tensor& logits_V, const LogitEdits& edits, double temperature) {
  at::Tensor kept_V = logits_V;
  const at::Tensor scaled_V = logits_V.to(at::kDouble) / temperature;
  if (edits.min_p > 0.0)
    kept_V = kept_V.masked_fill(scaled_V.lt(scaled_V.max() + std::log(edits.min_p)), dropped_logit);
  if (edits.top_k == 0) return kept_V;
  const std::vector<RowSampling> row = {
      {.temperature = temperature, .top_k = edits.top_k, .top_p = edits.top_p}};
  const at::Tensor filtered =
      filtered_logits(kept_V.unsqueeze(0), sampling_parameters(row).to(logits_V.device()), needs_of(row));
  return kept_V.masked_fill(filtered[0].isinf(), dropped_logit);
}

}  // namespace

bool edits_logits(const SamplingOptions& options) {
  return options.min_p > 0.0 || options.presence_penalty != 0.0 || options.frequency_penalty != 0.0 ||
         options.repetition_penalty != 1.0 || !options.logit_bias.empty() || joins_filters(options);
}

LogitEdits edits_of(const SamplingOptions& options, std::span<const int32_t> tokens, size_t prompt) {
  LogitEdits edits;
  if (!edits_logits(options)) return edits;
  edits.min_p = options.min_p;
  if (joins_filters(options)) {
    edits.top_k = options.top_k;
    edits.top_p = options.top_p;
  }
  std::map<int32_t, TokenEdit> by_id;
  for (const auto& [id, bias] : options.logit_bias) by_id[id].bias += bias;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool is_new = i >= prompt;
    if (options.repetition_penalty != 1.0) by_id[tokens[i]].penalty = options.repetition_penalty;
    if (!is_new || (options.presence_penalty == 0.0 && options.frequency_penalty == 0.0)) continue;
    TokenEdit& edit = by_id[tokens[i]];
    if (edit.taken == 0.0) edit.taken = options.presence_penalty;
    edit.taken += options.frequency_penalty;
  }
  for (auto& [id, edit] : by_id) {
    edit.id = id;
    edits.tokens.push_back(edit);
  }
  return edits;
}

at::Tensor sample_edited_rows(const at::Tensor& logits_RV, const at::Tensor& parameters_R5,
                              const SamplingNeeds& needs, const std::vector<const LogitEdits*>& edits) {
  const at::Tensor temperatures = parameters_R5.select(1, 0).to(at::kCPU);
  at::Tensor edited_RV = logits_RV.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  for (size_t i = 0; i < edits.size(); ++i) {
    if (edits[i]->empty()) continue;
    at::Tensor row_V = edited_RV[static_cast<int64_t>(i)];
    at::Tensor changed_V = edits[i]->tokens.empty() ? row_V : edited_tokens(row_V, edits[i]->tokens);
    if (edits[i]->allowed) changed_V = allowed_tokens(changed_V, *edits[i]->allowed);
    changed_V = filtered_row(changed_V, *edits[i], temperatures[static_cast<int64_t>(i)].item<double>());
    row_V.copy_(changed_V);
  }
  SamplingNeeds only_ids = needs;
  only_ids.logprobs = false;
  only_ids.top = 0;
  const at::Tensor chosen = sample_rows(edited_RV, parameters_R5, only_ids);
  if (!needs.logprobs) return chosen;
  return with_top_tokens(chosen[0].to(at::kLong), logits_RV.to(at::kDouble).log_softmax(1), needs.top).t();
}

}  // namespace teratron
