#include "teratron/cli/ckpt/ckpt_merge_lora.h"

#include <nlohmann/json.hpp>

#include "teratron/base/config/command_line.h"
#include "teratron/base/log.h"
#include "teratron/cli/ckpt/checkpoint_format.h"
#include "teratron/hf/convert.h"
#include "teratron/hf/hf_checkpoint.h"
#include "teratron/hf/peft.h"
#include "teratron/settings/component_options.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

struct MergeFlags {
  std::string load, from_hf, lora, save, to_hf;
  Arguments settings;  // ckpt_step
};

std::unique_ptr<CheckpointSource> open_base(const std::string& from_hf, const fs::path& load) {
  if (!from_hf.empty()) return std::make_unique<HfCheckpoint>(from_hf);
  return std::make_unique<CheckpointReader>(load);
}

LoraAdapters adapters_of(const std::string& folder, const CheckpointSource& base) {
  const CheckpointInfo& info = base.info();
  if (!folder.empty())
    return read_peft(folder, read_peft_config(folder), hf_tensors(hf_model_of(info), info.tensors.size()));
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
  if (f.load.empty() == f.from_hf.empty() || f.save.empty() == f.to_hf.empty()) {
    throw config_error({.what = "the model or the result is not named, or twice",
                        .where = "ckpt merge-lora",
                        .fix = "Give one of --load and --from-hf, and one of --save and --to-hf"});
  }
  if (f.load.empty() && f.lora.empty())
    throw config_error({.what = "no adapters are given", .where = "--lora", .fix = "Name their folder"});
  const auto base =
      open_base(f.from_hf, f.load.empty() ? "" : locate_checkpoint(f.load, f.settings.ckpt_step));
  const MergedLora merged(*base, adapters_of(f.lora, *base));
  const ConversionReport report =
      f.to_hf.empty() ? import_checkpoint(merged, {.destination = f.save})
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
      .usage = "--load DIR|--from-hf DIR [--lora DIR] --save DIR|--to-hf DIR",
      .summary = "Add LoRA adapters to the weights.",
      .fields = {
          bound_field("load", &f.load, "A --save folder, or one of its iter_* folders"),
          bound_field("from_hf", &f.from_hf, "A Hugging Face folder, in place of --load"),
          bound_setting("ckpt_step", &f.settings),
          bound_field("lora", &f.lora, "Folder of adapters in PEFT's format; default: those of --load"),
          bound_field("save", &f.save, "Folder of the merged checkpoint"),
          bound_field("to_hf", &f.to_hf, "New Hugging Face folder, in place of --save")}};
  return read_command(line, args) ? merge(f) : 0;
}

}  // namespace teratron
