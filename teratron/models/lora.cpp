#include "teratron/models/lora.h"

#include "teratron/base/error.h"
#include "teratron/models/lora_names.h"

namespace teratron {

std::optional<LoraOptions> lora_options(const Arguments& args, const ModelPlan& model) {
  if (!args.lora_rank) return std::nullopt;
  LoraOptions options{.rank = *args.lora_rank,
                      .alpha = args.lora_alpha.value_or(static_cast<double>(*args.lora_rank)),
                      .dropout = args.lora_dropout};
  for (const std::string& name : args.lora_targets) {
    options.targets.push_back(lora_target(name));
    if (!options.targets.back().empty()) continue;
    throw config_error({.what = fmt::format("'{}' is not a linear layer", printable(name, 60)),
                        .where = "--lora-targets",
                        .fix =
                            "Use linear_qkv, or linear_q, linear_k and linear_v, linear_proj, linear_fc1, or "
                            "linear_fc1_gate and linear_fc1_up, and linear_fc2"});
  }
  if (!options.targets.empty()) return options;
  // As transformers holds them: decoders of GPT-2's kind have one projection for queries, keys and values.
  const bool gated = args.swiglu || args.geglu;
  const bool fused = model.towers.size() == 1 && model.towers[0].name == "decoder" && !gated;
  options.targets = {"linear_proj", "linear_fc2"};
  if (fused) options.targets.emplace_back("linear_qkv");
  if (!fused) options.targets.insert(options.targets.end(), {"linear_q", "linear_k", "linear_v"});
  if (gated) options.targets.insert(options.targets.end(), {"linear_fc1_gate", "linear_fc1_up"});
  if (!gated) options.targets.emplace_back("linear_fc1");
  return options;
}

void freeze_base(ParameterSet& parameters) {
  for (Parameter& parameter : parameters.all()) {
    const std::string_view name = parameter.name;
    if (!is_lora(name) && !name.starts_with("classification_head") && !name.starts_with("multichoice_head"))
      freeze(parameter);
  }
}

}  // namespace teratron
