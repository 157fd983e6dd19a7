// Adapters of a checkpoint, and their sum with its weights.
#include <algorithm>
#include <cstring>

#include "teratron/ckpt/index_ranges.h"
#include "teratron/hf/float_convert.h"
#include "teratron/hf/peft.h"
#include "teratron/hf/peft_layout.h"

namespace teratron {

using nlohmann::json;
using namespace peft;

namespace {

bool is_adapter(const std::string& name) {
  return name.ends_with(".lora_A") || name.ends_with(".lora_B");
}

bool is_optimizer_state(const std::string& name) {
  return name.starts_with("optimizer.");
}

}  // namespace

std::vector<LocalTensor> adapter_parts(const CheckpointInfo& checkpoint) {
  std::vector<LocalTensor> parts;
  for (const auto& [name, info] : checkpoint.tensors) {
    if (is_adapter(name) && !is_optimizer_state(name))
      parts.push_back({.name = name, .dtype = info.dtype, .shard = Shard::replicated(info.shape)});
  }
  return parts;
}

LoraAdapters saved_adapters(const CheckpointSource& checkpoint) {
  const CheckpointInfo& info = checkpoint.info();
  const json settings = json::parse(info.config);
  LoraAdapters adapters;
  if (!settings.contains("lora_rank") || settings["lora_rank"].is_null()) return adapters;
  const PeftConfig config = config_of(settings);
  for (const HfTensor& tensor : hf_tensors(hf_model_of(info), info.tensors.size())) {
    const auto [part, count] = source_parts(tensor, config.targets);
    if (count == 0) continue;
    const std::string layer = layer_of(tensor);
    const TensorInfo &a = info.tensors.at(layer + ".lora_A"), &b = info.tensors.at(layer + ".lora_B");
    LoraWeights weights{a.shape,
                        b.shape,
                        read_saved(checkpoint, layer + ".lora_A", a),
                        read_saved(checkpoint, layer + ".lora_B", b),
                        std::vector<int64_t>(static_cast<size_t>(tensor.shape[0]), 0),
                        config.alpha / static_cast<double>(config.rank)};
    for (const RowSlice& slice : tensor.slices())
      std::fill_n(weights.part_of_row.begin() + slice.our_row, slice.rows, part[slice.source]);
    adapters[layer] = std::move(weights);
  }
  return adapters;
}

MergedLora::MergedLora(const CheckpointSource& base, LoraAdapters adapters)
    : base_(base), adapters_(std::move(adapters)), info_(base.info()) {
  std::erase_if(info_.tensors, [](const auto& tensor) {
    return is_adapter(tensor.first) || is_optimizer_state(tensor.first);
  });
  json config = json::parse(info_.config);
  for (const char* const name :
       {"lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "lora", "lora_out"})
    config.erase(name);
  info_.config = config.dump();
  info_.state = "{}";
}

void MergedLora::read(const LocalTensor& target) const {
  base_.read(target);
  constexpr std::string_view end = ".weight";
  if (!target.name.ends_with(end)) return;
  const auto found = adapters_.find(target.name.substr(0, target.name.size() - end.size()));
  if (found == adapters_.end()) return;
  const LoraWeights& lora = found->second;
  const int64_t rank = lora.shape_b[1], in = lora.shape_a[1];
  const int64_t size = size_of(target.dtype);
  const int64_t flat_end = target.flat_end < 0 ? local_numel(target.shard) : target.flat_end;
  for (const IndexRange& range : index_ranges(target.shard, target.flat_begin, flat_end)) {
    char* const place = static_cast<char*>(target.data) + range.local * size;
    std::vector<char> bytes(place, place + range.length * size);
    bytes = convert_floats(std::move(bytes), target.dtype, Dtype::f32);
    auto* const values = reinterpret_cast<float*>(bytes.data());
    for (int64_t k = 0; k < range.length;) {
      const int64_t row = (range.global + k) / in, column = (range.global + k) % in;
      const int64_t count = std::min(in - column, range.length - k);
      const int64_t part = lora.part_of_row[static_cast<size_t>(row)];
      for (int64_t r = 0; part >= 0 && r < rank; ++r) {
        const auto factor = static_cast<float>(lora.scale * lora.b[static_cast<size_t>(row * rank + r)]);
        const float* const a = lora.a.data() + (part * rank + r) * in + column;
        for (int64_t i = 0; i < count; ++i) values[k + i] += factor * a[i];
      }
      k += count;
    }
    bytes = convert_floats(std::move(bytes), Dtype::f32, target.dtype);
    std::memcpy(place, bytes.data(), bytes.size());
  }
}

}  // namespace teratron
