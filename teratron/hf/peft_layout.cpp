#include "teratron/hf/peft_layout.h"

#include <algorithm>
#include <cstring>

#include "teratron/ckpt/safetensors.h"
#include "teratron/hf/float_convert.h"
#include "teratron/models/lora_names.h"

namespace teratron::peft {

using nlohmann::json;

namespace {

// The projections of a weight, in the order of its rows and of transformers' modules; empty: it is one.
std::vector<std::string> projections(std::string_view layer) {
  if (ends_as_module(layer, "linear_qkv")) return {"linear_q", "linear_k", "linear_v"};
  if (ends_as_module(layer, "linear_q_proj")) return {"linear_q"};
  if (ends_as_module(layer, "linear_kv")) return {"linear_k", "linear_v"};
  if (ends_as_module(layer, "linear_fc1")) return {"linear_fc1_gate", "linear_fc1_up"};
  return {};
}

// "up_proj" of an MLP without a gate is the whole layer, though PEFT's settings tell only the name.
bool is_ungated_up(const HfTensor& tensor, std::string_view layer) {
  return ends_as_module(layer, "linear_fc1") && tensor.sources.size() == 1 &&
         ends_as_module(module_of(tensor.sources[0]), "up_proj");
}

}  // namespace

UserError refuse(std::string what, const std::filesystem::path& where, std::string fix) {
  return checkpoint_error(
      {.what = std::move(what), .where = printable(where.string(), 4096), .fix = std::move(fix)});
}

std::string layer_of(const HfTensor& tensor) {
  constexpr std::string_view end = ".weight";
  return tensor.name.ends_with(end) ? tensor.name.substr(0, tensor.name.size() - end.size()) : "";
}

std::string module_of(const HfSource& source) {
  return source.name.substr(0, source.name.rfind('.'));
}

SourceParts source_parts(const HfTensor& tensor, const std::vector<std::string>& targets) {
  const std::string layer = layer_of(tensor);
  const auto is_target = [&](const std::string& name) {
    return std::find(targets.begin(), targets.end(), name) != targets.end();
  };
  const size_t sources = tensor.sources.size();
  if (layer.empty() || tensor.shape.size() != 2) return {std::vector<int64_t>(sources, -1)};
  if (is_target(layer.substr(layer.rfind('.') + 1)) ||
      (is_ungated_up(tensor, layer) && is_target("linear_fc1_up")))
    return {std::vector<int64_t>(sources, 0), 1};
  SourceParts parts{std::vector<int64_t>(sources, -1)};
  const std::vector<std::string> names = projections(layer);
  for (size_t i = 0; i < names.size(); ++i) {
    if (!is_target(names[i])) continue;
    if (sources != names.size()) return {std::vector<int64_t>(sources, -2), 1};
    parts.part[i] = parts.count++;
  }
  return parts;
}

PeftConfig config_of(const json& settings) {
  const int64_t rank = settings.at("lora_rank");
  return {.rank = rank,
          .alpha = setting(settings, "lora_alpha", static_cast<double>(rank)),
          .dropout = setting(settings, "lora_dropout", 0.0),
          .targets = setting(settings, "lora_targets", std::vector<std::string>())};
}

std::vector<float> read_saved(const CheckpointSource& checkpoint, const std::string& name,
                              const TensorInfo& info) {
  std::vector<char> bytes(static_cast<size_t>(*checked_numel(info.shape) * size_of(info.dtype)));
  checkpoint.read({name, info.dtype, Shard::replicated(info.shape), 0, -1, bytes.data()});
  bytes = convert_floats(std::move(bytes), info.dtype, Dtype::f32);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace teratron::peft
