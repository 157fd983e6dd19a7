#include "teratron/train/checkpoint/adapters.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/base/log.h"
#include "teratron/ckpt/index_ranges.h"
#include "teratron/hf/peft.h"
#include "teratron/train/checkpoint/model_checkpoint.h"

namespace teratron {

namespace {

void copy_to_parameter(const std::vector<float>& values, Parameter* parameter) {
  if (!parameter) return;  // of another pipeline stage
  at::Tensor host = at::empty(parameter->tensor.sizes(), at::kFloat);
  for (const IndexRange& range : index_ranges(parameter->shard(), 0, host.numel()))
    std::copy_n(values.begin() + range.global, range.length, host.mutable_data_ptr<float>() + range.local);
  const at::NoGradGuard no_grad;
  parameter->tensor.copy_(host);
}

}  // namespace

std::map<std::string, TensorInfo> base_weights(TrainEngine& engine) {
  std::map<std::string, TensorInfo> tensors = saved_weights(engine);
  std::erase_if(tensors, [](const auto& tensor) { return is_lora(tensor.first); });
  return tensors;
}

void load_adapters(const CheckpointedRun& run) {
  const auto& folder = run.args.lora;
  if (!folder) return;
  const std::map<std::string, TensorInfo> weights = base_weights(run.engine);
  const HfModel model = hf_model_of({.path = *folder, .config = run.config, .tensors = weights});
  const LoraAdapters adapters =
      read_peft(*folder, read_peft_config(*folder), hf_tensors(model, weights.size()));
  for (const auto& [layer, lora] : adapters) {
    copy_to_parameter(lora.a, run.engine.parameters().find(layer + ".lora_A"));
    copy_to_parameter(lora.b, run.engine.parameters().find(layer + ".lora_B"));
  }
  run.engine.optimizer().reset_master_weights();
  if (run.is_first_rank()) print(" loading the adapters of {}", printable(*folder, 4096));
}

}  // namespace teratron
