#include "teratron/megatron/written_model.h"

#include <cstdlib>
#include <string_view>

#include "teratron/base/error.h"

namespace teratron {

namespace {

int64_t count_layers(const std::map<std::string, TensorInfo>& tensors, std::string_view stack) {
  int64_t count = 0;
  const auto has_layer = [&] {
    const std::string prefix = fmt::format("{}.layers.{}.", stack, count);
    const auto found = tensors.lower_bound(prefix);
    return found != tensors.end() && found->first.starts_with(prefix);
  };
  while (has_layer()) ++count;
  return count;
}

[[noreturn]] void refuse(const std::string& what, const std::string& fix) {
  throw config_error({.what = what, .where = "--target-pipeline-parallel-size", .fix = fix});
}

// The possible split with the most equal stages; 0: there is none.
int64_t best_split(int64_t first, int64_t second, int64_t stages) {
  int64_t best = INT64_MAX, result = 0;
  for (int64_t split = 1; split < stages; ++split) {
    if (first % split != 0 || second % (stages - split) != 0) continue;
    const int64_t difference = std::abs(first / split - second / (stages - split));
    if (difference < best) best = difference, result = split;
  }
  return result;
}

}  // namespace

MegatronStages megatron_stages(const MegatronModel& model, const std::map<std::string, TensorInfo>& tensors,
                               int64_t stages) {
  MegatronStages result{.stages = stages};
  for (const MegatronStack& stack : model.stacks) result.layers.push_back(count_layers(tensors, stack.ours));
  if (model.stacks.size() == 1) {
    if (result.layers[0] % stages != 0)
      refuse(fmt::format("{} layers are not divisible by {} stages", result.layers[0], stages),
             "Each stage has the same number of layers: use a divisor");
    return result;
  }
  const int64_t first = result.layers[0], second = result.layers[1];
  result.split = best_split(first, second, stages);
  if (stages > 1 && result.split == 0)
    refuse(
        fmt::format("{} {} layers and {} {} layers cannot be divided among {} stages", first,
                    model.stacks[0].ours, second, model.stacks[1].ours, stages),
        fmt::format("Megatron-LM gives some stages the {}, the others the {}, each the same number of layers",
                    model.stacks[0].ours, model.stacks[1].ours));
  return result;
}

}  // namespace teratron
