#include "teratron/generate/generator.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"

namespace teratron {

namespace {

MicroBatch batch_from(const std::vector<int32_t>& ids, int64_t first, at::Device device) {
  const std::vector<int64_t> rest(ids.begin() + first, ids.end());
  const auto length = static_cast<int64_t>(rest.size());
  const auto i64 = at::TensorOptions().dtype(at::kLong);
  const at::Tensor tokens = at::tensor(rest, i64).view({length, 1});
  const at::Tensor positions = at::arange(first, first + length, i64).view({length, 1});
  return {.tokens_SB = tokens.to(device), .positions_SB = positions.to(device), .training = false};
}

}  // namespace

at::Tensor gather_logits(GPT& model, const Activations& output) {
  const at::Tensor local_SBV = model.logits(output);
  const at::Tensor all_SBV = gather_from(local_SBV, 2, model.parallel().group);
  return all_SBV.narrow(2, 0, model.config().vocabulary);
}

std::vector<int32_t> generate(GPT& model, const std::vector<int32_t>& prompt,
                              const GenerationOptions& options) {
  const at::NoGradGuard no_grad;
  const int64_t positions = model.config().max_positions;
  TERATRON_ASSERT(!prompt.empty());
  if (static_cast<int64_t>(prompt.size()) >= positions) {
    throw config_error(
        {.what = fmt::format("the prompt has {} tokens and the model {} positions", prompt.size(), positions),
         .where = "--prompt",
         .fix = "Shorten the prompt"});
  }
  std::vector<int32_t> ids = prompt;
  LayerStates states(model.stage().layers);
  int64_t seen = 0;
  const auto room = std::min(options.max_new_tokens, positions - static_cast<int64_t>(prompt.size()));
  for (int64_t count = 0; count < room; ++count) {
    const MicroBatch batch = batch_from(ids, seen, model.device());
    seen = static_cast<int64_t>(ids.size());
    const at::Tensor logits_SBV = gather_logits(model, model.forward({}, batch, &states));
    const uint64_t draw = (options.sequence << 32U) + static_cast<uint64_t>(seen);
    const auto id = static_cast<int32_t>(sample(logits_SBV[-1][0], options.sampling, draw));
    ids.push_back(id);
    if (options.on_token) options.on_token(id);
    if (id == options.end_token) break;
  }
  return {ids.begin() + static_cast<int64_t>(prompt.size()), ids.end()};
}

}  // namespace teratron
