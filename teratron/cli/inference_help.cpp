#include "teratron/cli/inference_help.h"

#include <set>

namespace teratron {

std::string inference_help(const std::string& usage, const std::function<bool(const Field&)>& own) {
  const std::set<std::string_view> shared = {"load",
                                             "hf",
                                             "lora",
                                             "ckpt_step",
                                             "bf16",
                                             "fp16",
                                             "tensor_model_parallel_size",
                                             "pipeline_model_parallel_size",
                                             "expert_model_parallel_size",
                                             "expert_tensor_parallel_size",
                                             "device",
                                             "num_threads",
                                             "config_file"};
  std::vector<Field> fields;
  for (const Field& field : arguments_schema().fields()) {
    if (field.group == "Tokenizer" || shared.contains(field.name) || own(field)) fields.push_back(field);
  }
  const Arguments defaults;
  return help_text(Schema({.fields = fields, .compat_flags = {}, .later_flags = {}}), {usage}, &defaults);
}

}  // namespace teratron
