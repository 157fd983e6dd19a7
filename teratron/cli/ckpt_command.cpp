#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/cli/ckpt_megatron.h"
#include "teratron/cli/commands.h"
#include "teratron/hf/convert.h"
#include "teratron/settings/arguments.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

struct Flags {
  std::string directory;  // inspect, verify
  std::optional<int64_t> step;
  bool list_tensors = false;
  std::string from_megatron;
  std::vector<std::string> settings;  // other flags, beside from_megatron
  std::string from_hf, to_hf, save, load, load_path, save_path, tokenizer;
  std::string dtype;
  std::string max_shard_size = "5GB";
  bool to_transformers = false;
  bool print_structure = false;
  MegatronLayoutFlags megatron;
  std::vector<std::string> without_effect;
};

fs::path locate(const fs::path& directory, std::optional<int64_t> step) {
  SingleHostGroup alone;
  const std::optional<fs::path> found = find_checkpoint(directory, step, alone);
  if (found) return *found;
  throw checkpoint_error({.what = "there is no checkpoint",
                          .where = printable(directory.string(), 4096),
                          .fix = "Name the --save folder of a training run, or one of its iter_* folders"});
}

int64_t numel(const TensorInfo& tensor) {
  int64_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;
  return count;
}

void print_tensors(const CheckpointInfo& info) {
  for (const auto& [name, tensor] : info.tensors) {
    teratron::print("  {:<72} {:<5} [{}]", printable(name), name_of(tensor.dtype),
                    fmt::join(tensor.shape, ", "));
  }
}

int inspect(const Flags& flags) {
  if (is_megatron(flags.directory)) {
    inspect_megatron(flags.directory, flags.step, flags.list_tensors);
    return 0;
  }
  const CheckpointInfo info = open_checkpoint(locate(flags.directory, flags.step));
  int64_t weights = 0;
  int64_t others = 0;
  for (const auto& [name, tensor] : info.tensors) {
    (name.starts_with("optimizer.") ? others : weights) += numel(tensor);
  }
  print("checkpoint    {}", printable(info.path.string(), 4096));
  print("iteration     {}", info.iteration);
  print("written by    {} ranks, save {}", info.ranks, info.run_id);
  print("size          {} bytes in {} tensors", info.bytes, info.tensors.size());
  print("weights       {} elements", weights);
  print("optimizer     {} elements", others);
  print("config        {}", nlohmann::json::parse(info.config).dump(2));
  print("state         {}", nlohmann::json::parse(info.state).dump(2));
  if (flags.list_tensors) print_tensors(info);
  return 0;
}

int verify(const Flags& flags) {
  if (is_megatron(flags.directory)) {
    verify_megatron(flags.directory, flags.step);
    return 0;
  }
  const fs::path path = locate(flags.directory, flags.step);
  const auto start = std::chrono::steady_clock::now();
  const int64_t bytes = verify_checkpoint(path);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  print("{}: all hashes match ({} bytes, {:.2f} s)", printable(path.string(), 4096), bytes, seconds.count());
  return 0;
}

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

int count_given(std::initializer_list<const std::string*> flags) {
  return static_cast<int>(
      std::ranges::count_if(flags, [](const std::string* flag) { return !flag->empty(); }));
}

// Resolves the flags of Accelerate's tool; then there are one source and one destination.
void resolve_ends(Flags& flags) {
  const auto sources = [&] { return count_given({&flags.from_hf, &flags.from_megatron, &flags.load}); };
  const auto destinations = [&] {
    return count_given({&flags.save, &flags.to_hf, &flags.megatron.to_megatron});
  };
  if (sources() == 0) (flags.to_transformers ? flags.load : flags.from_hf) = flags.load_path;
  if (destinations() == 0) (flags.to_transformers ? flags.to_hf : flags.save) = flags.save_path;
  const bool only_prints = flags.print_structure && destinations() == 0;
  const bool nothing_to_do = !flags.load.empty() && !flags.save.empty();
  if (sources() == 1 && (destinations() == 1 || only_prints) && !nothing_to_do) return;
  throw config_error({.what = "source and destination are missing or ambiguous",
                      .where = "ckpt convert",
                      .fix = "Name one source with --from-hf, --from-megatron or --load, and one destination "
                             "with --save, --to-hf or "
                             "--to-megatron"});
}

// The model settings that differ from their defaults, as flags of the other commands, without the sequence
// length, which the user chooses.
std::string as_flags(const nlohmann::json& settings) {
  const nlohmann::json defaults = nlohmann::json::parse(to_json(Arguments()));
  std::string text;
  for (const auto& [name, value] : settings.items()) {
    if (name == "seq_length" || !defaults.contains(name) || value == defaults.at(name)) continue;
    if (value == false) {
      const std::string_view off = arguments_schema().field(name).traits.off;
      text += fmt::format(" {}", off.substr(0, off.find(' ')));
    } else if (value == true) {
      text += " " + flag_of(name);
    } else {
      text +=
          fmt::format(" {} {}", flag_of(name), value.is_string() ? value.get<std::string>() : value.dump());
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

ConversionReport export_from(const fs::path& checkpoint, const Flags& flags) {
  if (!flags.megatron.to_megatron.empty())
    return convert_to_megatron(checkpoint, flags.megatron, parse_dtype(flags.dtype));
  return export_hf({.source = checkpoint,
                    .destination = flags.to_hf,
                    .dtype = parse_dtype(flags.dtype),
                    .max_shard_bytes = parse_size(flags.max_shard_size),
                    .tokenizer = flags.tokenizer.empty()
                                     ? tokenizer_of_checkpoint(open_checkpoint(checkpoint))
                                     : hf_tokenizer_in(flags.tokenizer)});
}

ConversionReport import_from(const Flags& flags, const fs::path& save) {
  const std::optional<Dtype> dtype = parse_dtype(flags.dtype);
  if (flags.from_megatron.empty())
    return import_hf({.source = flags.from_hf, .destination = save, .dtype = dtype});
  return convert_from_megatron({.source = flags.from_megatron,
                                .save = save,
                                .step = flags.step,
                                .dtype = dtype,
                                .settings = flags.settings,
                                .optimizer = !flags.save.empty()});
}

// Only what Megatron-LM's checkpoints do not say may be given by flags of other commands.
void check_settings(const Flags& flags) {
  if (flags.settings.empty() || !flags.from_megatron.empty()) return;
  throw config_error({.what = fmt::format("unknown argument '{}'", printable(flags.settings[0])),
                      .where = "ckpt convert",
                      .fix = "Settings of the model are given only with --from-megatron; see --help"});
}

void print_structure(const Flags& flags, const fs::path& checkpoint) {
  if (!flags.from_megatron.empty()) return print_megatron_structure(flags.from_megatron, flags.step);
  print_tensors(open_checkpoint(checkpoint));
}

// Between two other formats, beside the destination; removed with it.
class TemporaryCheckpoint {
 public:
  explicit TemporaryCheckpoint(fs::path destination) : path_(std::move(destination)) {
    if (!path_.has_filename()) path_ = path_.parent_path();
    path_ += ".partial-" + random_hex(8) + "-weights";
  }
  ~TemporaryCheckpoint() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryCheckpoint(const TemporaryCheckpoint&) = delete;
  TemporaryCheckpoint& operator=(const TemporaryCheckpoint&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

int convert(Flags& flags) {
  check_settings(flags);
  resolve_ends(flags);
  const bool exporting = !flags.to_hf.empty() || !flags.megatron.to_megatron.empty();
  if (flags.megatron.to_megatron.empty()) {
    for (const std::string& name : flags.megatron.given()) flags.without_effect.push_back(name);
  }
  for (const std::string& name : flags.without_effect) {
    notice("{} has no effect: a checkpoint does not depend on the layout and is resharded when loaded", name);
  }
  if (!exporting && flags.save.empty()) {
    print_structure(flags, flags.load.empty() ? fs::path() : locate(flags.load, flags.step));
    return 0;
  }
  const TemporaryCheckpoint temporary(flags.to_hf + flags.megatron.to_megatron);
  std::optional<ConversionReport> imported;
  if (flags.load.empty()) imported = import_from(flags, exporting ? temporary.path() : fs::path(flags.save));
  const fs::path checkpoint = imported ? imported->result : locate(flags.load, flags.step);
  const ConversionReport report = exporting ? export_from(checkpoint, flags) : *imported;
  for (const auto& part : {imported.value_or(ConversionReport()), exporting ? report : ConversionReport()}) {
    for (const std::string& line : part.notices) notice_line(line);
  }
  if (flags.print_structure) print_structure(flags, checkpoint);
  print("wrote {} ({} tensors, {} elements)", printable(report.result.string(), 4096), report.tensors,
        report.elements);
  if (!exporting) {
    print("{} it with --load {} {}{}", report.can_continue ? "continue" : "train from",
          printable(flags.save, 4096), report.can_continue ? "" : "--finetune ",
          as_flags(nlohmann::json::parse(open_checkpoint(report.result).config)));
  }
  return 0;
}

void add_convert(CLI::App& app, Flags& flags) {
  CLI::App* const command = app.add_subcommand("convert", "Convert from and to Hugging Face and Megatron-LM");
  command->allow_extras();
  command->footer(
      "With --from-megatron, flags of `pretrain` give what the checkpoint does not say, such as\n"
      "--num-attention-heads, or --vocab-file and --merge-file to cut off the vocabulary's padding.");
  command->add_option("--from-megatron", flags.from_megatron,
                      "folder, zip file or .pt file that Megatron-LM wrote (formats torch and torch_dist)");
  command->add_option("--from-hf", flags.from_hf,
                      "folder with config.json and weights (safetensors, or pytorch_model.bin) to read");
  command->add_option("--save", flags.save, "folder to save the checkpoint in");
  command->add_option("--to-hf", flags.to_hf, "new folder for config.json and safetensors");
  command->add_option("--load", flags.load, "folder of checkpoints, or one checkpoint");
  command->add_option("--ckpt-step", flags.step, "iteration to read; default: the newest");
  command->add_option("--max-shard-size", flags.max_shard_size, "maximum size of a safetensors file")
      ->capture_default_str();
  command->add_option("--tokenizer-name", flags.tokenizer,
                      "folder with tokenizer files to copy; default: those used in training");
  command->add_option("--target-params-dtype", flags.dtype, "fp32, bf16 or fp16; default: unchanged");
  command->add_option("--load-path", flags.load_path, "Accelerate's name for --from-hf and --load");
  command->add_option("--save-path", flags.save_path, "Accelerate's name for --save and --to-hf");
  command->add_flag("--convert-checkpoint-from-megatron-to-transformers", flags.to_transformers,
                    "with --load-path and --save-path: export");
  command->add_flag("--print-checkpoint-structure", flags.print_structure, "list the tensors");
  flags.megatron.add_to(*command);
  command->add_option_function<int64_t>(
      "--target-data-parallel-size",
      [&flags](const int64_t&) { flags.without_effect.emplace_back("--target-data-parallel-size"); },
      "no effect");
  command->add_flag_callback(
      "--use-distributed-optimizer",
      [&flags] { flags.without_effect.emplace_back("--use-distributed-optimizer"); }, "no effect");
}

}  // namespace

int ckpt_command(std::span<const std::string> args) {
  Flags flags;
  CLI::App app("Inspect, verify and convert checkpoints", "teratron ckpt");
  app.require_subcommand(1);
  for (const char* name : {"inspect", "verify"}) {
    CLI::App* const command =
        app.add_subcommand(name, name == std::string("inspect") ? "Show the contents of a checkpoint"
                                                                : "Check every byte against its hash");
    command
        ->add_option("directory", flags.directory,
                     "a --save folder of Teratron or Megatron-LM, or one of its iter_* folders")
        ->required();
    command->add_option("--ckpt-step", flags.step, "iteration; default: the newest");
    if (name == std::string("inspect"))
      command->add_flag("--tensors", flags.list_tensors, "list the tensors");
  }
  add_convert(app, flags);
  if (!parse_command(app, args)) return 0;
  if (app.got_subcommand("inspect")) return inspect(flags);
  if (app.got_subcommand("verify")) return verify(flags);
  flags.settings = app.get_subcommand("convert")->remaining();
  return convert(flags);
}

}  // namespace teratron
