// Writing adapters in PEFT's format.
#include <algorithm>
#include <set>

#include "teratron/base/file.h"
#include "teratron/base/partial_folder.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/hf/peft.h"
#include "teratron/hf/peft_layout.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace peft;

namespace {

// What is written to a folder: pairs of modules, by our layer.
struct PeftPlan {
  PeftConfig config;
  HfModel model;
  std::vector<HfTensor> tensors;         // with adapters
  std::vector<std::string> all_modules;  // linear layers of the model
  std::string base;                      // where the base model was read
};

PeftPlan plan_peft(const CheckpointInfo& info) {
  const json settings = json::parse(info.config);
  PeftPlan plan{.config = config_of(settings), .model = hf_model_of(info)};
  plan.base = setting(settings, "hf", std::string());
  if (!plan.model.family->parts.empty()) {
    throw refuse(
        fmt::format("adapters of a {} are not written in PEFT's format", plan.model.family->model_type),
        info.path, "Train without --lora-out and keep the checkpoint of --save");
  }
  for (HfTensor& tensor : hf_tensors(plan.model, info.tensors.size())) {
    if (tensor.shape.size() == 2) {
      for (const HfSource& source : tensor.sources) plan.all_modules.push_back(module_of(source));
    }
    const auto [part, count] = source_parts(tensor, plan.config.targets);
    if (count == 0) continue;
    if (tensor.stacked)
      throw refuse(
          fmt::format("in transformers {} is one tensor of all experts, which PEFT's adapters do not have",
                      module_of(tensor.sources[0])),
          info.path, "Train with other --lora-targets");
    if (part[0] == -2) {
      throw refuse(fmt::format("in transformers {} is one module, but its projections have separate adapters",
                               module_of(tensor.sources[0])),
                   info.path,
                   fmt::format("Train with --lora-targets {}",
                               layer_of(tensor).substr(layer_of(tensor).rfind('.') + 1)));
    }
    plan.tensors.push_back(std::move(tensor));
  }
  return plan;
}

// Last names of modules, if these name no others; else whole names.
std::vector<std::string> target_modules(const std::vector<std::string>& targets,
                                        const std::vector<std::string>& all) {
  std::set<std::string> ends;
  for (const std::string& module : targets) ends.insert(module.substr(module.rfind('.') + 1));
  const auto named = std::count_if(all.begin(), all.end(), [&](const std::string& module) {
    return ends.contains(module.substr(module.rfind('.') + 1));
  });
  if (static_cast<size_t>(named) == targets.size()) return {ends.begin(), ends.end()};
  return targets;
}

json adapter_config(const PeftPlan& plan, const std::vector<std::string>& modules) {
  const std::string_view task = plan.model.family->peft_task;
  json config{{"peft_type", "LORA"},
              {"base_model_name_or_path", plan.base},
              {"r", plan.config.rank},
              {"lora_alpha", plan.config.alpha},
              {"lora_dropout", plan.config.dropout},
              {"target_modules", target_modules(modules, plan.all_modules)},
              {"bias", "none"},
              {"fan_in_fan_out", plan.tensors.front().sources.front().transposed},
              {"inference_mode", true},
              {"init_lora_weights", true}};
  config["task_type"] = task.empty() ? json() : json(task);
  return config;
}

void write_adapters(const PeftExport& request, const fs::path& folder) {
  const CheckpointSource& reader = request.source;
  const CheckpointInfo& info = reader.info();
  const PeftPlan plan = plan_peft(info);
  struct Pair {
    std::string module;
    std::vector<float> a, b;
  };
  std::vector<Pair> pairs;
  const int64_t rank = plan.config.rank;
  std::vector<std::string> modules;
  std::vector<SafetensorsWriter::Tensor> outputs;
  for (const HfTensor& tensor : plan.tensors) {
    const SourceParts parts = source_parts(tensor, plan.config.targets);
    const std::string layer = layer_of(tensor), name_a = layer + ".lora_A", name_b = layer + ".lora_B";
    const std::vector<float> a = read_saved(reader, name_a, info.tensors.at(name_a));
    const std::vector<float> b = read_saved(reader, name_b, info.tensors.at(name_b));
    const int64_t in = tensor.columns();
    for (size_t source = 0; source < tensor.sources.size(); ++source) {
      if (parts.part[source] < 0) continue;
      Pair pair{module_of(tensor.sources[source])};
      const auto first = a.begin() + parts.part[source] * rank * in;
      pair.a.assign(first, first + rank * in);
      for (const RowSlice& slice : tensor.slices()) {
        if (slice.source != source) continue;
        pair.b.resize(std::max(pair.b.size(), static_cast<size_t>((slice.row + slice.rows) * rank)));
        std::copy_n(b.begin() + slice.our_row * rank, slice.rows * rank, pair.b.begin() + slice.row * rank);
      }
      modules.push_back(pair.module);
      const std::string module = std::string(prefix) + pair.module;
      outputs.push_back({module + ".lora_A.weight", Dtype::f32, {rank, in}});
      outputs.push_back({module + ".lora_B.weight", Dtype::f32, {std::ssize(pair.b) / rank, rank}});
      pairs.push_back(std::move(pair));
    }
  }
  SafetensorsWriter writer(folder / weight_file, outputs, {{"format", "pt"}});
  for (const Pair& pair : pairs) {
    for (const std::vector<float>* const values : {&pair.a, &pair.b})
      writer.write(values->data(), std::ssize(*values) * static_cast<int64_t>(sizeof(float)));
  }
  writer.finish();
  write_text(folder / config_file, adapter_config(plan, modules).dump(2) + "\n", ExitCode::checkpoint);
}

void check_empty_folder(const fs::path& destination) {
  std::error_code ignored;
  if (!fs::exists(destination, ignored) || fs::is_empty(destination, ignored)) return;
  throw config_error({.what = "the folder is not empty",
                      .where = printable(destination.string(), 4096),
                      .fix = "Give --lora-out a new folder"});
}

}  // namespace

void check_peft(const CheckpointInfo& info, const fs::path& destination) {
  check_empty_folder(destination);
  plan_peft(info);
}

void write_peft(const PeftExport& request) {
  check_empty_folder(request.destination);
  PartialFolder folder(request.destination);
  write_adapters(request, folder.path());
  folder.commit();
}

}  // namespace teratron
