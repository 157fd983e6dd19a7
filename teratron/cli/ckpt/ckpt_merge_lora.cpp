#include "teratron/cli/ckpt/ckpt_merge_lora.h"

#include <optional>
#include <tuple>

#include <nlohmann/json.hpp>

#include "teratron/base/config/command_line.h"
#include "teratron/base/log.h"
#include "teratron/hf/convert.h"
#include "teratron/hf/hf_checkpoint.h"
#include "teratron/hf/peft.h"
#include "teratron/megatron/checkpoint_format.h"
#include "teratron/settings/component_options.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

struct MergeFlags {
  std::string from_hf, to_hf;
  Arguments settings;  // load, ckpt_step, lora, save
};

std::unique_ptr<CheckpointSource> open_base(const std::string& from_hf, const fs::path& load) {
  if (!from_hf.empty()) return std::make_unique<HfCheckpoint>(from_hf);
  return std::make_unique<CheckpointReader>(load);
}

LoraAdapters adapters_of(const std::optional<std::string>& folder, const CheckpointSource& base) {
  const CheckpointInfo& info = base.info();
  if (folder)
    return read_peft(*folder, read_peft_config(*folder), hf_tensors(hf_model_of(info), info.tensors.size()));
  LoraAdapters saved = saved_adapters(base);
  if (!saved.empty()) return saved;
  throw config_error({.what = "the checkpoint has no adapters",
                      .where = info.path.string(),
                      .fix = "Name their folder with --lora"});
}

HfTokenizer tokenizer_of(const CheckpointInfo& info) {
  std::vector<std::string> unknown;
  return hf_tokenizer(tokenizer_options(arguments_from_json(info.config, info.path.string(), &unknown)));
}

int merge(const MergeFlags& f) {
  const auto& [load, lora, save] = std::tie(f.settings.load, f.settings.lora, f.settings.save);
  if (load.has_value() != f.from_hf.empty() || save.has_value() != f.to_hf.empty()) {
    throw config_error({.what = "the model or the result is not named, or twice",
                        .where = "ckpt merge-lora",
                        .fix = "Give one of --load and --from-hf, and one of --save and --to-hf"});
  }
  if (!load && !lora)
    throw config_error({.what = "no adapters are given", .where = "--lora", .fix = "Name their folder"});
  const auto base = open_base(f.from_hf, load ? locate_checkpoint(*load, f.settings.ckpt_step) : fs::path());
  const MergedLora merged(*base, adapters_of(lora, *base));
  const ConversionReport report =
      f.to_hf.empty() ? import_checkpoint(merged, {.destination = *save})
                      : export_hf(merged, {.destination = f.to_hf, .tokenizer = tokenizer_of(merged.info())});
  for (const std::string& line : report.notices) notice_line(line);
  print("wrote {} ({} tensors, {} elements)", printable(report.result.string(), 4096), report.tensors,
        report.elements);
  return 0;
}

}  // namespace

int merge_lora_command(std::span<const std::string> args) {
  MergeFlags f;
  const CommandLine line = {
      .name = "teratron ckpt merge-lora",
      .example = "teratron ckpt merge-lora --from-hf MODEL --lora ADAPTERS --to-hf MERGED",
      .usage = "--load DIR|--from-hf DIR [--lora DIR] --save DIR|--to-hf DIR",
      .summary = "Add LoRA adapters to the weights.",
      .fields = {
          bound_setting("load", &f.settings, "A --save folder, or one of its iter_* folders"),
          bound_field("from_hf", &f.from_hf, "A Hugging Face folder, in place of --load"),
          bound_setting("ckpt_step", &f.settings),
          bound_setting("lora", &f.settings, "Folder of adapters in PEFT's format; default: those of --load"),
          bound_setting("save", &f.settings, "Folder of the merged checkpoint"),
          bound_field("to_hf", &f.to_hf, "New Hugging Face folder, in place of --save")}};
  return read_command(line, args) ? merge(f) : 0;
}

}  // namespace teratron
