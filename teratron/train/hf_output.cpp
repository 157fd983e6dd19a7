// Trainer and TrainLoop: --hf-out, --lora and --lora-out.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/base/log.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/index_ranges.h"
#include "teratron/comm/collective_errors.h"
#include "teratron/hf/convert.h"
#include "teratron/hf/peft.h"
#include "teratron/settings/component_options.h"
#include "teratron/train/train_loop.h"

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

std::map<std::string, TensorInfo> without_adapters(std::map<std::string, TensorInfo> tensors) {
  std::erase_if(tensors, [](const auto& tensor) { return is_lora(tensor.first); });
  return tensors;
}

}  // namespace

void Trainer::load_adapters() {
  if (!args_.lora) return;
  const std::map<std::string, TensorInfo> weights = without_adapters(saved_weights(*engine_));
  const HfModel model = hf_model_of({.path = *args_.lora, .config = config_json(), .tensors = weights});
  const LoraAdapters adapters =
      read_peft(*args_.lora, read_peft_config(*args_.lora), hf_tensors(model, weights.size()));
  for (const auto& [layer, lora] : adapters) {
    copy_to_parameter(lora.a, engine_->parameters().find(layer + ".lora_A"));
    copy_to_parameter(lora.b, engine_->parameters().find(layer + ".lora_B"));
  }
  engine_->optimizer().reset_master_weights();
  if (is_first_rank()) print(" loading the adapters of {}", printable(*args_.lora, 4096));
}

void Trainer::check_hf_out() {
  const std::map<std::string, TensorInfo> tensors = without_adapters(saved_weights(*engine_));
  run_on_rank_0(*mesh_.world().communicator, [&]() -> std::string {
    check_export({.path = *args_.hf_out, .config = config_json(), .tensors = tensors}, *args_.hf_out);
    const HfTokenizer tokenizer = hf_tokenizer(tokenizer_options(args_));
    if (!tokenizer.missing.empty())
      notice("--hf-out: the folder will have no tokenizer: {}", tokenizer.missing);
    return "";
  });
}

void Trainer::check_lora_out() {
  const std::map<std::string, TensorInfo> tensors = without_adapters(saved_weights(*engine_));
  run_on_rank_0(*mesh_.world().communicator, [&]() -> std::string {
    check_peft({.path = *args_.lora_out, .config = config_json(), .tensors = tensors}, *args_.lora_out);
    return "";
  });
}

void Trainer::with_checkpoint(const std::filesystem::path& output,
                              const std::function<void(const std::filesystem::path&)>& use) {
  finish_save();
  std::filesystem::path copy = output.has_filename() ? output : output.parent_path();
  copy += ".weights";
  std::filesystem::path source;
  if (is_saved()) {
    source = std::filesystem::path(*args_.save) / iteration_name(state_.iteration);
  } else {
    source = save_model(*engine_, {.directory = copy, .config = config_json()}, false).path;
  }
  run_on_rank_0(*mesh_.world().communicator, [&]() -> std::string {
    use(source);
    std::error_code ignored;
    if (!is_saved()) std::filesystem::remove_all(copy, ignored);
    return "";
  });
}

void Trainer::export_hf() {
  const std::filesystem::path folder = *args_.hf_out;
  with_checkpoint(folder, [&](const std::filesystem::path& source) {
    const HfExport request{.destination = folder, .tokenizer = hf_tokenizer(tokenizer_options(args_))};
    const CheckpointReader weights(source);
    const ConversionReport report =
        engine_->options().lora ? teratron::export_hf(MergedLora(weights, saved_adapters(weights)), request)
                                : teratron::export_hf(weights, request);
    for (const std::string& line : report.notices) notice_line(line);
  });
}

void Trainer::export_lora() {
  with_checkpoint(*args_.lora_out, [&](const std::filesystem::path& source) {
    write_peft({.source = source, .destination = *args_.lora_out});
  });
}

void TrainLoop::export_model() {
  const auto due = [](const std::optional<std::string>& folder) {
    std::error_code ignored;
    return folder &&
           (!std::filesystem::exists(*folder, ignored) || std::filesystem::is_empty(*folder, ignored));
  };
  const bool finished = args().skip_train || state().iteration >= trainer_.train_iters();
  for (const auto& [flag, folder] : {std::pair("--hf-out", args().hf_out), {"--lora-out", args().lora_out}}) {
    if (!due(folder)) continue;
    const std::string name = printable(*folder, 4096);
    if (!finished && args().save) {
      if (is_first_rank())
        print("{}: {} is not written, since training stopped at iteration {} of {}; it will be at the end",
              flag, name, state().iteration, trainer_.train_iters());
      continue;
    }
    const bool model = folder == args().hf_out;
    if (is_first_rank())
      print("writing the {} at iteration {:7d} to {}", model ? "model" : "adapters", state().iteration, name);
    model ? trainer_.export_hf() : trainer_.export_lora();
  }
}

}  // namespace teratron
