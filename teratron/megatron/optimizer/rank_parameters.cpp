#include "teratron/megatron/optimizer/rank_parameters.h"

#include <algorithm>

namespace teratron {

int64_t numel(const RankParameter& parameter) {
  int64_t count = 1;
  for (const int64_t size : parameter.shape) count *= size;
  return count;
}

bool is_embedding_or_output(std::string_view path) {
  return path.find("embedding") != path.npos || path.starts_with("output_layer.") ||
         path.find(".output_layer.") != path.npos;
}

int place_in_legacy_model(std::string_view path) {
  constexpr std::string_view parts[] = {"language_model.embedding.",
                                        "language_model.encoder.",
                                        "language_model.transformer.",
                                        "language_model.decoder.",
                                        "language_model.pooler.",
                                        "language_model.output_layer.",
                                        "word_embeddings_for_head.",
                                        "lm_head.",
                                        "binary_head."};
  const auto* const found =
      std::ranges::find_if(parts, [&path](std::string_view part) { return path.starts_with(part); });
  return static_cast<int>(found - std::begin(parts));
}

std::vector<ParameterPlace> places_of(const StageParameters& stages) {
  std::vector<ParameterPlace> places;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    for (size_t i = 0; i < stages[stage].size(); ++i) places.push_back({stage, i});
  }
  return places;
}

namespace {

GroupKind kind_of(const RankParameter& parameter) {
  return {.decayed = parameter.shape.size() > 1 && !parameter.path.ends_with("bias"),
          .decoupled = parameter.decoupled,
          .expert = parameter.expert};
}

}  // namespace

std::vector<GroupKind> usual_groups(const StageParameters& stages,
                                    const std::vector<ParameterPlace>& parameters, GroupOrder order) {
  std::vector<GroupKind> groups;
  for (const ParameterPlace& place : parameters) {
    GroupKind kind = kind_of(stages[place.stage][place.number]);
    kind.decoupled = false;
    if (std::ranges::find(groups, kind) == groups.end()) groups.push_back(kind);
  }
  if (order == GroupOrder::decayed_first)
    std::ranges::stable_sort(groups, {}, [](const GroupKind& kind) { return !kind.decayed; });
  return groups;
}

std::vector<std::vector<ParameterPlace>> divide_into_groups(const std::vector<GroupKind>& groups,
                                                            const std::vector<ParameterPlace>& parameters,
                                                            const StageParameters& stages) {
  const bool decoupled = std::ranges::any_of(groups, &GroupKind::decoupled);
  const bool expert = std::ranges::any_of(groups, &GroupKind::expert);
  std::vector<std::vector<ParameterPlace>> result;
  for (const GroupKind& group : groups) {
    auto& members = result.emplace_back();
    for (const ParameterPlace& place : parameters) {
      GroupKind kind = kind_of(stages[place.stage][place.number]);
      kind.decoupled = kind.decoupled && decoupled;
      kind.expert = kind.expert && expert;
      if (kind == group) members.push_back(place);
    }
  }
  return result;
}

std::vector<ParameterShard> shards_of_rank(const StageParameters& stages, int64_t rank, int64_t ranks) {
  std::vector<ParameterShard> shards;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    int64_t end = 0;
    for (const RankParameter& parameter : stages[stage]) end += numel(parameter);
    const int64_t each = (end + ranks - 1) / ranks;
    for (size_t i = 0; i < stages[stage].size(); ++i) {
      const int64_t size = numel(stages[stage][i]), begin = end - size;
      const int64_t from = std::clamp<int64_t>(rank * each - begin, 0, size);
      const int64_t to = std::clamp<int64_t>((rank + 1) * each - begin, 0, size);
      if (from < to) shards.push_back({{stage, i}, from, to});
      end = begin;
    }
  }
  return shards;
}

}  // namespace teratron
