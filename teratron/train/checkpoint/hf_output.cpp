#include "teratron/train/checkpoint/hf_output.h"

#include <algorithm>
#include <system_error>

#include "teratron/base/log.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/nodes/node_folders.h"
#include "teratron/ckpt/nodes/peer_shards.h"
#include "teratron/comm/collective_errors.h"
#include "teratron/hf/convert.h"
#include "teratron/hf/peft.h"
#include "teratron/settings/component_options.h"
#include "teratron/train/checkpoint/adapters.h"

namespace teratron {

namespace {

std::map<std::string, Dtype> dtypes_of(const std::string& hf_folder) {
  std::map<std::string, Dtype> dtypes;
  const WeightFiles files(hf_folder);
  for (const auto& [name, tensor] : files.tensors()) {
    if (tensor.dtype == Dtype::f32 || tensor.dtype == Dtype::f16 || tensor.dtype == Dtype::bf16)
      dtypes[name] = tensor.dtype;
  }
  return dtypes;
}

// For tensors that the folder has not, such as a new head.
std::optional<Dtype> most_frequent(const std::map<std::string, Dtype>& dtypes) {
  std::map<Dtype, size_t> counts;
  for (const auto& [name, dtype] : dtypes) ++counts[dtype];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; });
  return most == counts.end() ? std::nullopt : std::optional(most->first);
}

}  // namespace

void HfOutput::check(bool finished) {
  const auto due = [finished](const std::optional<std::string>& folder) {
    std::error_code ignored;
    return folder && !(finished && std::filesystem::exists(*folder, ignored));
  };
  if (due(run_.args.hf_out)) check_model();
  if (due(run_.args.lora_out)) check_adapters();
}

void HfOutput::check_model() {
  const std::map<std::string, TensorInfo> tensors = base_weights(run_.engine);
  run_on_rank_0(run_.ranks(), [&]() -> std::string {
    const std::string& folder = *run_.args.hf_out;
    check_export({.path = folder, .config = run_.config, .tensors = tensors}, folder);
    if (run_.args.hf) dtypes_ = dtypes_of(*run_.args.hf);
    const HfTokenizer tokenizer = hf_tokenizer(tokenizer_options(run_.args));
    if (!tokenizer.missing.empty())
      notice("--hf-out: the folder will have no tokenizer: {}", tokenizer.missing);
    return "";
  });
}

void HfOutput::check_adapters() {
  const std::map<std::string, TensorInfo> tensors = base_weights(run_.engine);
  run_on_rank_0(run_.ranks(), [&]() -> std::string {
    const std::string& folder = *run_.args.lora_out;
    check_peft({.path = folder, .config = run_.config, .tensors = tensors}, folder);
    return "";
  });
}

void HfOutput::with_checkpoint(const std::filesystem::path& output,
                               const std::function<void(const CheckpointSource&)>& use) {
  saver_.finish();
  HostGroup& ranks = run_.ranks();
  std::filesystem::path copy = output.has_filename() ? output : output.parent_path();
  copy += ".weights";
  std::filesystem::path source;
  std::shared_ptr<const NodeFolders> folders = run_.folders;
  if (saver_.is_saved()) {
    source = std::filesystem::path(*run_.args.save) / iteration_name(run_.state.iteration);
  } else {
    folders = std::make_shared<const NodeFolders>(check_save_directory(copy, ranks));
    const SaveRequest request{.directory = copy, .config = run_.config, .nodes = folders};
    source = save_model(run_.engine, request, false).path;
  }
  use_on_rank_0(source, ranks, [&](const Manifest& manifest, const RemoteShards& remote) {
    use(CheckpointReader(source, manifest, remote));
  });
  std::error_code ignored;
  if (!saver_.is_saved() && folders->leads(ranks.rank())) std::filesystem::remove_all(copy, ignored);
}

void HfOutput::write_model() {
  const std::filesystem::path folder = *run_.args.hf_out;
  with_checkpoint(folder, [&](const CheckpointSource& weights) {
    const HfExport request{.destination = folder,
                           .dtype = most_frequent(dtypes_),
                           .dtype_of = dtypes_,
                           .tokenizer = hf_tokenizer(tokenizer_options(run_.args))};
    const ConversionReport report = run_.engine.options().lora
                                        ? export_hf(MergedLora(weights, saved_adapters(weights)), request)
                                        : export_hf(weights, request);
    for (const std::string& line : report.notices) notice_line(line);
  });
}

void HfOutput::write_adapters() {
  with_checkpoint(*run_.args.lora_out, [&](const CheckpointSource& weights) {
    write_peft({.source = weights, .destination = *run_.args.lora_out});
  });
}

void HfOutput::write(int64_t train_iters) {
  const auto due = [](const std::optional<std::string>& folder) {
    std::error_code ignored;
    return folder &&
           (!std::filesystem::exists(*folder, ignored) || std::filesystem::is_empty(*folder, ignored));
  };
  const Arguments& args = run_.args;
  const int64_t iteration = run_.state.iteration;
  const bool finished = args.skip_train || iteration >= train_iters;
  const auto write = [&](const char* flag, const std::optional<std::string>& folder, const char* what,
                         void (HfOutput::*output)()) {
    if (!due(folder)) return;
    const std::string name = printable(*folder, 4096);
    if (!finished && args.save) {
      if (run_.is_first_rank())
        print("{}: {} is not written, since training stopped at iteration {} of {}; it will be at the end",
              flag, name, iteration, train_iters);
      return;
    }
    if (run_.is_first_rank()) print("writing the {} at iteration {:7d} to {}", what, iteration, name);
    (this->*output)();
  };
  write("--hf-out", args.hf_out, "model", &HfOutput::write_model);
  write("--lora-out", args.lora_out, "adapters", &HfOutput::write_adapters);
}

}  // namespace teratron
