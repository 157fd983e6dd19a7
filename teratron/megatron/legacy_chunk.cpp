#include "teratron/megatron/legacy_chunk.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/megatron/names.h"

namespace teratron {

namespace {

[[noreturn]] void refuse_experts(const std::string& what, const std::string& where) {
  throw checkpoint_error(
      {.what = what, .where = where, .fix = "Copy the folders mp_rank_* of all ranks of one run"});
}

// GroupedMlp of core 0.5 to 0.15 has the experts of a rank in one tensor, [experts][in][out] in memory.
void add_grouped(const SavedParameter& grouped, const ParameterState& state, int64_t experts,
                 LegacyChunk& chunk) {
  const std::string module = grouped.path.substr(0, grouped.path.rfind('.') + 1);
  const std::vector<int64_t>& shape = grouped.shape;
  const bool first = grouped.path.ends_with("1");
  const int64_t in = first ? shape[0] : shape[0] / experts, out = first ? shape[1] / experts : shape[1];
  for (int64_t e = 0; e < experts; ++e) {
    const auto of_expert = [&](const TensorSourcePtr& all) {
      return transposed(slice_of(all, e * in * out, {in, out}));
    };
    ParameterState own;
    for (const auto& [name, all] : state) own[name] = of_expert(all);
    chunk.add(fmt::format("{}linear_fc{}.weight{}", module, first ? 1 : 2, e), of_expert(grouped.weight),
              std::move(own));
  }
}

ParameterState state_of(const LegacyChunk& chunk, size_t number) {
  return chunk.states.empty() ? ParameterState() : chunk.states[number];
}

// Experts by layer, "decoder.layers.1.mlp.experts.", and how many a rank has.
std::map<std::string, int64_t> count_experts(const LegacyChunk& chunk) {
  std::map<std::string, int64_t> counts;
  for (const SavedParameter& parameter : chunk.parameters) {
    const auto expert = expert_number(parameter.path);
    if (!expert) continue;
    int64_t& count = counts[parameter.path.substr(0, parameter.path.find("mlp.experts."))];
    count = std::max(count, expert->number + 1);
  }
  return counts;
}

}  // namespace

LegacyChunk with_single_experts(LegacyChunk chunk, int64_t expert_ranks, const std::string& where) {
  const auto is_grouped = [](const SavedParameter& parameter) {
    return parameter.path.ends_with("mlp.experts.weight1") || parameter.path.ends_with("mlp.experts.weight2");
  };
  if (std::ranges::none_of(chunk.parameters, is_grouped)) return chunk;
  LegacyChunk result;
  for (size_t i = 0; i < chunk.parameters.size(); ++i) {
    const SavedParameter& parameter = chunk.parameters[i];
    if (!is_grouped(parameter)) {
      result.add(parameter.path, parameter.weight, state_of(chunk, i));
      continue;
    }
    const std::string module = parameter.path.substr(0, parameter.path.rfind('.') + 1);
    const std::string router = module.substr(0, module.size() - 8) + "router.weight";
    const auto found = chunk.by_path.find(router);
    if (found == chunk.by_path.end() || chunk.parameters[found->second].shape.size() != 2)
      refuse_experts(fmt::format("the matrix \"{}\" is missing", printable(router)), where);
    const int64_t experts = chunk.parameters[found->second].shape[0];
    if (experts < expert_ranks || experts % expert_ranks != 0)
      refuse_experts(fmt::format("{} experts on {} expert ranks", experts, expert_ranks), where);
    const bool second = parameter.path.ends_with("2");
    if (parameter.shape.size() != 2 || parameter.shape[second ? 0 : 1] % (experts / expert_ranks) != 0)
      refuse_experts(fmt::format("tensor \"{}\" does not hold {} experts", printable(parameter.path),
                                 experts / expert_ranks),
                     where);
    add_grouped(parameter, state_of(chunk, i), experts / expert_ranks, result);
  }
  if (chunk.states.empty()) result.states.clear();
  return result;
}

void add_experts(const LegacyChunk& from, int64_t rank, const std::string& where, LegacyChunk& chunk) {
  const bool with_states = !chunk.states.empty() && !from.states.empty();
  if (!with_states) chunk.states.clear();
  const auto counts = count_experts(from);
  for (size_t i = 0; i < from.parameters.size(); ++i) {
    const SavedParameter& parameter = from.parameters[i];
    const auto expert = expert_number(parameter.path);
    if (!expert) continue;
    const int64_t here = counts.at(parameter.path.substr(0, parameter.path.find("mlp.experts.")));
    std::string path = parameter.path;
    path.replace(expert->at, expert->length, std::to_string(rank * here + expert->number));
    if (chunk.by_path.contains(path))
      refuse_experts(fmt::format("expert ranks 0 and {} have different numbers of experts", rank), where);
    chunk.add(path, parameter.weight);
    if (with_states) chunk.states.push_back(from.states[i]);
  }
}

}  // namespace teratron
