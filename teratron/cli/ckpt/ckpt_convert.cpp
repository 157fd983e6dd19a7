#include "teratron/cli/ckpt/ckpt_convert.h"

#include <algorithm>
#include <optional>
#include <regex>
#include <string>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/base/strings.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/cli/ckpt/checkpoint_structure.h"
#include "teratron/cli/ckpt/ckpt_megatron.h"
#include "teratron/hf/convert.h"
#include "teratron/hf/hf_checkpoint.h"
#include "teratron/megatron/checkpoint_format.h"
#include "teratron/models/family_formats.h"
#include "teratron/settings/arguments.h"
#include "teratron/settings/component_options.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

struct ConversionFlags {
  std::string from_megatron, from_hf, load, load_path;  // sources
  std::string save, to_hf, save_path;                   // destinations, with megatron.to_megatron
  MegatronLayoutFlags megatron;
  Arguments shared;  // flags that training has, too
  std::string tokenizer, dtype;
  std::string max_shard_size = "5GB", format = "safetensors", model_type;
  bool to_transformers = false;
  bool print_structure = false;
  std::vector<std::string> settings;  // flags of `pretrain`, beside from_megatron
};

std::optional<Dtype> parse_dtype(const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text == "fp32" || text == "float32") return Dtype::f32;
  if (text == "bf16" || text == "bfloat16") return Dtype::bf16;
  if (text == "fp16" || text == "float16") return Dtype::f16;
  throw config_error({.what = fmt::format("'{}' is not a valid dtype", printable(text)),
                      .where = "--target-params-dtype",
                      .fix = "Use fp32, bf16 or fp16"});
}

// "200MB", "5GB", "1GiB", "1000000".
int64_t parse_size(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  std::string unit = text.substr(digits);
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::toupper(c); });
  constexpr std::pair<const char*, int64_t> units[] = {
      {"", 1},          {"B", 1},         {"KB", 1000},    {"MB", 1000'000}, {"GB", 1000'000'000},
      {"KIB", 1 << 10}, {"MIB", 1 << 20}, {"GIB", 1 << 30}};
  for (const auto& [name, factor] : units) {
    if (unit != name || digits == 0 || digits > 9) continue;
    const int64_t bytes = std::stoll(text.substr(0, digits)) * factor;
    if (bytes > 0) return bytes;
  }
  throw config_error({.what = fmt::format("'{}' is not a valid size", printable(text)),
                      .where = "--max-shard-size",
                      .fix = "Use for example 200MB or 5GB"});
}

// The model settings that differ from their defaults, as flags of the other commands, without the sequence
// length, which the user chooses.
std::string as_flags(nlohmann::json settings) {
  const nlohmann::json defaults = nlohmann::json::parse(to_json(Arguments()));
  std::string text;
  // Without a tokenizer ids are the text; NullTokenizer adds one, the end of a document.
  const auto rows = settings.find("vocab_size");
  if (settings.value("tokenizer_type", nlohmann::json()).is_null() && rows != settings.end() &&
      rows->is_number_integer()) {
    settings["tokenizer_type"] = "NullTokenizer";
    *rows = rows->get<int64_t>() - 1;
  }
  for (const auto& [name, value] : settings.items()) {
    if (name == "seq_length" || !defaults.contains(name) || value == defaults.at(name)) continue;
    if (value == false) {
      const std::string_view off = arguments_schema().field(name).traits.off;
      text += fmt::format(" {}", off.substr(0, off.find(' ')));
    } else if (value == true) {
      text += " " + flag_of(name);
    } else {
      const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
      const char* const quote = word.find_first_of("*(| ") != std::string::npos ? "'" : "";  // from the shell
      text += fmt::format(" {0} {1}{2}{1}", flag_of(name), quote, word);
    }
  }
  return text.empty() ? text : text.substr(1);
}

// The tokenizer in the checkpoint's settings; none, with a notice, if they name none or its files cannot be
// read.
HfTokenizer tokenizer_of_checkpoint(const CheckpointInfo& checkpoint) {
  std::vector<std::string> unknown;
  HfTokenizer tokenizer = hf_tokenizer(
      tokenizer_options(arguments_from_json(checkpoint.config, checkpoint.path.string(), &unknown)));
  if (!tokenizer.missing.empty())
    notice("no tokenizer is copied: {}. Use --tokenizer-name to name a folder with one", tokenizer.missing);
  return tokenizer;
}

// A folder, or the name of a published model that is in Hugging Face's cache.
HfTokenizer choose_tokenizer(const std::string& name, const CheckpointInfo& checkpoint) {
  static const std::regex hub_name("[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?");
  std::error_code ignored;
  if (name.empty()) return tokenizer_of_checkpoint(checkpoint);
  if (fs::is_directory(name, ignored) || !std::regex_match(name, hub_name)) return hf_tokenizer_in(name);
  if (const auto cached = cached_hf_folder(name)) return hf_tokenizer_in(*cached);
  notice(
      "--tokenizer-name {}: there is neither such a folder nor such a model in Hugging Face's cache, and "
      "nothing is downloaded: the checkpoint's own tokenizer is taken",
      name);
  return tokenizer_of_checkpoint(checkpoint);
}

WeightFormat weight_format(const std::string& name) {
  return name == "bin" ? WeightFormat::bin : WeightFormat::safetensors;
}

// Megatron-LM's programs name the family of the model that they convert.
void check_model_type(const std::string& type, const CheckpointInfo& checkpoint) {
  if (type.empty()) return;
  const std::string family = saved_family(nlohmann::json::parse(checkpoint.config));
  if (family.starts_with(to_lower(type))) return;  // bert_classifier is a BERT
  throw config_error({.what = fmt::format("{} is a model of the family {}",
                                          printable(checkpoint.path.string(), 4096), printable(family)),
                      .where = "--model-type " + type,
                      .fix = "Leave it out, or name the family of the checkpoint"});
}

[[noreturn]] void refuse(std::string what) {
  throw config_error({.what = std::move(what),
                      .where = "ckpt convert",
                      .fix =
                          "Give one of --from-hf, --from-megatron and --load, and one of --save, --to-hf and "
                          "--to-megatron"});
}

void require_one(const char* what, int given) {
  if (given != 1) refuse(fmt::format("{} {} is given", given == 0 ? "no" : "more than one", what));
}

int count(std::initializer_list<const std::string*> values) {
  return static_cast<int>(std::ranges::count_if(values, [](const auto* value) { return !value->empty(); }));
}

class CheckpointConversion {
 public:
  explicit CheckpointConversion(ConversionFlags flags) : flags_(std::move(flags)) {}
  /// Returns the exit code.
  int run();

 private:
  void resolve_paths();
  void note_what_changes_nothing() const;
  ConversionReport convert() const;
  std::unique_ptr<CheckpointSource> open_source(std::vector<std::string>& notices) const;
  ConversionFlags flags_;
};

/// Accelerate's flags name no format: the source is recognized, and the destination is Megatron-LM's unless
/// the direction flag says otherwise.
void CheckpointConversion::resolve_paths() {
  ConversionFlags& f = flags_;
  require_one("source", count({&f.from_hf, &f.from_megatron, &f.load, &f.load_path}));
  const int destinations = count({&f.save, &f.to_hf, &f.megatron.to_megatron, &f.save_path});
  if (destinations > 0 || !f.print_structure) require_one("destination", destinations);
  if (!f.load_path.empty()) {
    const CheckpointFormat format = checkpoint_format(f.load_path);
    (format == CheckpointFormat::teratron   ? f.load
     : format == CheckpointFormat::megatron ? f.from_megatron
                                            : f.from_hf) = f.load_path;
  }
  if (!f.save_path.empty()) (f.to_transformers ? f.to_hf : f.megatron.to_megatron) = f.save_path;
  if (!f.load.empty() && !f.save.empty()) refuse("--load and --save are of the same format");
  // Only what Megatron-LM's checkpoints do not say may be given by flags of other commands.
  if (f.settings.empty() || !f.from_megatron.empty()) return;
  throw config_error({.what = fmt::format("unknown argument '{}'", printable(f.settings[0])),
                      .where = "ckpt convert",
                      .fix = "Settings of the model are given only with --from-megatron; see --help"});
}

void CheckpointConversion::note_what_changes_nothing() const {
  std::vector<std::string> names;
  if (flags_.megatron.to_megatron.empty()) {
    names = flags_.megatron.given();
  } else if (flags_.megatron.data_ranks && !flags_.megatron.distributed_optimizer) {
    names.emplace_back("--target-data-parallel-size");  // all ranks have the same optimizer
  }
  if (flags_.to_hf.empty() && flags_.format != "safetensors")
    notice("--format has no effect without --to-hf");
  if (names.empty()) return;
  notice(
      "no effect: {}. A checkpoint here does not depend on the layout, and one of Megatron-LM's without "
      "distributed optimizer is cut over tensor, pipeline and expert ranks alone",
      fmt::join(names, ", "));
}

std::unique_ptr<CheckpointSource> CheckpointConversion::open_source(std::vector<std::string>& notices) const {
  const ConversionFlags& f = flags_;
  if (!f.load.empty())
    return std::make_unique<CheckpointReader>(locate_checkpoint(f.load, f.shared.ckpt_step));
  if (!f.from_hf.empty()) return std::make_unique<HfCheckpoint>(f.from_hf);
  const bool keeps_state = f.to_hf.empty();  // which holds weights alone
  auto opened = open_megatron({.source = f.from_megatron,
                               .step = f.shared.ckpt_step,
                               .dtype = f.save.empty() ? std::nullopt : parse_dtype(f.dtype),
                               .settings = f.settings,
                               .optimizer = keeps_state});
  notices = opened->notices();
  return opened;
}

ConversionReport CheckpointConversion::convert() const {
  const ConversionFlags& f = flags_;
  const std::optional<Dtype> dtype = parse_dtype(f.dtype);
  const int64_t max_shard_bytes = parse_size(f.max_shard_size);
  std::vector<std::string> notices;
  const std::unique_ptr<CheckpointSource> source = open_source(notices);
  check_model_type(f.model_type, source->info());
  const auto write = [&]() -> ConversionReport {
    if (!f.save.empty()) return import_checkpoint(*source, {.destination = f.save, .dtype = dtype});
    if (!f.megatron.to_megatron.empty()) return convert_to_megatron(*source, f.megatron, dtype);
    return export_hf(*source, {.destination = f.to_hf,
                               .dtype = dtype,
                               .shards = {.max_bytes = max_shard_bytes, .format = weight_format(f.format)},
                               .tokenizer = choose_tokenizer(f.tokenizer, source->info())});
  };
  ConversionReport report = write();
  report.notices.insert(report.notices.begin(), notices.begin(), notices.end());
  return report;
}

int CheckpointConversion::run() {
  ConversionFlags& f = flags_;
  resolve_paths();
  note_what_changes_nothing();
  if (f.save.empty() && f.to_hf.empty() && f.megatron.to_megatron.empty()) {
    print_checkpoint_structure(f.load + f.from_hf + f.from_megatron, f.shared.ckpt_step);
    return 0;
  }
  const ConversionReport report = convert();
  for (const std::string& line : report.notices) notice_line(line);
  if (f.print_structure) print_checkpoint_structure(report.result, std::nullopt);
  print("wrote {} ({} tensors, {} elements)", printable(report.result.string(), 4096), report.tensors,
        report.elements);
  if (f.save.empty()) return 0;
  print("{} it with --load {} {}{}", report.can_continue ? "continue" : "train from", printable(f.save, 4096),
        report.can_continue ? "" : "--finetune ",
        as_flags(nlohmann::json::parse(open_checkpoint(report.result).config)));
  return 0;
}

std::vector<Field> conversion_fields(ConversionFlags& f) {
  return joined(
      {bound_field(
           "from_megatron", &f.from_megatron,
           "Source: folder, zip file or .pt file that Megatron-LM wrote (formats torch and torch_dist)"),
       bound_field("from_hf", &f.from_hf,
                   "Source: folder with config.json and safetensors or pytorch_model.bin"),
       bound_setting("load", &f.shared, "Source: folder of checkpoints, or one checkpoint"),
       bound_setting("ckpt_step", &f.shared),
       bound_setting("save", &f.shared, "Destination: folder to save a checkpoint in"),
       bound_field("to_hf", &f.to_hf, "Destination: new folder for config.json and safetensors"),
       bound_field("max_shard_size", &f.max_shard_size, "Maximum size of a file of --to-hf"),
       bound_field("format", &f.format,
                   "Files of --to-hf: bin are pytorch_model*.bin, which older programs read",
                   {.choices = "safetensors|bin"}),
       bound_field("model_type", &f.model_type,
                   "Megatron-LM's name for the family that the source must be of",
                   {.choices = "GPT|BERT|T5"}),
       bound_field(
           "tokenizer_name", &f.tokenizer,
           "Folder with the tokenizer of --to-hf, or a name in Hugging Face's cache; default: that of the "
           "checkpoint"),
       bound_field("target_params_dtype", &f.dtype, "fp32, bf16 or fp16; default: unchanged"),
       bound_field("load_path", &f.load_path, "Accelerate's name for the source, whose format is recognized"),
       bound_field("save_path", &f.save_path,
                   "Accelerate's name for --to-megatron, or, with the next flag, for --to-hf"),
       bound_field("convert_checkpoint_from_megatron_to_transformers", &f.to_transformers,
                   "--save-path is for transformers"),
       bound_field("print_checkpoint_structure", &f.print_structure,
                   "List the tensors written or, without a destination, those of the source")},
      f.megatron.fields());
}

}  // namespace

int convert_command(std::span<const std::string> args) {
  ConversionFlags f;
  const CommandLine line = {
      .name = "teratron ckpt convert",
      .example = "teratron ckpt convert --to-hf my-model --load checkpoints",
      .usage = "SOURCE DESTINATION [FLAGS]",
      .summary = "Convert from and to Hugging Face and Megatron-LM.",
      .fields = conversion_fields(f),
      .others = OtherArguments::collected,
      .footer =
          "One source, one destination. With --from-megatron, flags of `pretrain` give what the checkpoint\n"
          "does not say, such as --num-attention-heads, or --vocab-file and --merge-file to cut off the\n"
          "vocabulary's padding."};
  std::optional<std::vector<std::string>> settings = read_command(line, args);
  if (!settings) return 0;
  f.settings = std::move(*settings);
  f.load = f.shared.load.value_or("");
  f.save = f.shared.save.value_or("");
  return CheckpointConversion(std::move(f)).run();
}

}  // namespace teratron
