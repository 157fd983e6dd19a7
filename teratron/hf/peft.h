// LoRA adapters in PEFT's format: adapter_config.json and adapter_model.safetensors, for a model that
// transformers has (models/hf_map.h).
//
//   base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight [rank, in]     and lora_B [out, rank]
//
// Ours stand beside the weight that holds the projection (nn/lora.h): linear_qkv.lora_A
// [parts * rank, in] and lora_B [out, rank]. A pair for all projections of a weight is written once for each
// of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/hf/lora_adapters.h"
#include "teratron/hf/weight_map.h"

namespace teratron {

/// The settings of an adapter, with PEFT's defaults. UserError(checkpoint) for what is not plain LoRA on
/// linear layers, and for a field with a value that is not known to leave it so.
PeftConfig read_peft_config(const std::filesystem::path& folder);

/// The adapters in a folder, for these tensors of the model they were made for. UserError(checkpoint) lists
/// tensors that are missing, unknown or of another shape: adapters of another model.
LoraAdapters read_peft(const std::filesystem::path& folder, const PeftConfig& config,
                       const std::vector<HfTensor>& tensors);

/// The adapters in a checkpoint of a training with LoRA; empty: it has none.
LoraAdapters saved_adapters(const CheckpointSource& checkpoint);
/// What that reads, as parts without memory.
std::vector<LocalTensor> adapter_parts(const CheckpointInfo& checkpoint);

struct PeftExport {
  const CheckpointSource& source;
  std::filesystem::path destination;  // must not exist, or be empty
};
/// UserError(checkpoint) if transformers does not have the model, or one module where several
/// projections have adapters.
void write_peft(const PeftExport& request);
/// Whether that can succeed, before there is a checkpoint.
void check_peft(const CheckpointInfo& info, const std::filesystem::path& destination);

/// W + alpha / rank B A of a checkpoint's weights and adapters, as a checkpoint without adapters.
class MergedLora final : public CheckpointSource {
 public:
  /// `base` must outlive it.
  MergedLora(const CheckpointSource& base, LoraAdapters adapters);
  const CheckpointInfo& info() const override { return info_; }
  void read(const LocalTensor& target) const override;
  bool reads_in_parts(const std::string& name) const override { return base_.reads_in_parts(name); }

 private:
  const CheckpointSource& base_;
  LoraAdapters adapters_;
  CheckpointInfo info_;
};

}  // namespace teratron
