#include "teratron/cli/ckpt_command.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/cli/model_tokenizer.h"
#include "teratron/hf/convert.h"
#include "teratron/settings/arguments.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

struct Flags {
  std::string directory;  // inspect, verify
  std::optional<int64_t> step;
  bool list_tensors = false;
  std::string from_hf, to_hf, save, load, load_path, save_path, tokenizer;
  std::string dtype;
  std::string max_shard_size = "5GB";
  bool to_transformers = false;
  bool print_structure = false;
  std::vector<std::string> without_effect;
};

fs::path locate(const fs::path& directory, std::optional<int64_t> step) {
  NoPeers alone;
  const std::optional<fs::path> found = find_checkpoint(directory, step, alone);
  if (found) return *found;
  throw checkpoint_error({.what = "there is no checkpoint",
                          .where = printable(directory.string(), 4096),
                          .fix = "Give the --save folder of a training run, or one of its iter_* folders"});
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
  const fs::path path = locate(flags.directory, flags.step);
  const auto start = std::chrono::steady_clock::now();
  const int64_t bytes = verify_checkpoint(path);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  print("{}: every hash agrees ({} bytes, {:.2f} s)", printable(path.string(), 4096), bytes, seconds.count());
  return 0;
}

std::optional<Dtype> parse_dtype(const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text == "fp32" || text == "float32") return Dtype::f32;
  if (text == "bf16" || text == "bfloat16") return Dtype::bf16;
  if (text == "fp16" || text == "float16") return Dtype::f16;
  throw config_error({.what = fmt::format("'{}' is no type of weights", printable(text)),
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
  throw config_error({.what = fmt::format("'{}' is no size", printable(text)),
                      .where = "--max-shard-size",
                      .fix = "Write for example 200MB or 5GB"});
}

// The spellings of Accelerate's tool become ours.
void resolve_aliases(Flags& flags) {
  std::string& in = flags.to_transformers ? flags.load : flags.from_hf;
  std::string& out = flags.to_transformers ? flags.to_hf : flags.save;
  if (in.empty()) in = flags.load_path;
  if (out.empty()) out = flags.save_path;
  const bool importing = !flags.from_hf.empty() && !flags.save.empty();
  const bool exporting = !flags.to_hf.empty() && !flags.load.empty();
  if (importing != exporting) return;
  throw config_error({.what = "it is not said what to convert, or into what",
                      .where = "ckpt convert",
                      .fix = "Give either --from-hf and --save, or --to-hf and --load"});
}

// The model's settings that are not the defaults, as they are given to the other commands. The sequence length is the
// user's choice.
std::string as_flags(const nlohmann::json& settings) {
  const nlohmann::json defaults = nlohmann::json::parse(to_json(Arguments()));
  std::string text;
  for (const auto& [name, value] : settings.items()) {
    if (name == "seq_length" || value == defaults.at(name)) continue;
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

ConversionReport export_from(const fs::path& checkpoint, const Flags& flags) {
  const ModelTokenizer tokenizer =
      flags.tokenizer.empty() ? tokenizer_of(open_checkpoint(checkpoint)) : tokenizer_in(flags.tokenizer);
  return export_hf({.source = checkpoint,
                    .destination = flags.to_hf,
                    .dtype = parse_dtype(flags.dtype),
                    .max_shard_bytes = parse_size(flags.max_shard_size),
                    .tokenizer = tokenizer.files,
                    .end_token = tokenizer.end_token});
}

int convert(Flags& flags) {
  resolve_aliases(flags);
  for (const std::string& name : flags.without_effect) {
    notice("{} has no effect: a checkpoint has no layout and is cut when it is loaded", name);
  }
  const bool importing = !flags.from_hf.empty();
  const fs::path source = importing ? fs::path(flags.from_hf) : locate(flags.load, flags.step);
  const ConversionReport report =
      importing ? import_hf({.source = source, .destination = flags.save, .dtype = parse_dtype(flags.dtype)})
                : export_from(source, flags);
  if (flags.print_structure) print_tensors(open_checkpoint(importing ? report.result : source));
  print("wrote {} ({} tensors, {} elements)", printable(report.result.string(), 4096), report.tensors,
        report.elements);
  if (importing) {
    print("train from it with --load {} --finetune {}", printable(flags.save, 4096),
          as_flags(nlohmann::json::parse(open_checkpoint(report.result).config)));
  }
  return 0;
}

void add_convert(CLI::App& app, Flags& flags) {
  CLI::App* const command = app.add_subcommand("convert", "Hugging Face models in and out");
  command->add_option("--from-hf", flags.from_hf, "Folder with config.json and safetensors to read");
  command->add_option("--save", flags.save, "Folder to save the checkpoint in");
  command->add_option("--to-hf", flags.to_hf, "Folder to write config.json and safetensors to; must be new");
  command->add_option("--load", flags.load, "Folder of checkpoints, or one of them");
  command->add_option("--ckpt-step", flags.step, "Iteration to read; default the newest");
  command->add_option("--max-shard-size", flags.max_shard_size, "Largest safetensors file written")
      ->capture_default_str();
  command->add_option("--tokenizer-name", flags.tokenizer,
                      "Folder whose tokenizer files are copied along; default those that training used");
  command->add_option("--target-params-dtype", flags.dtype, "fp32, bf16 or fp16; default as it is");
  command->add_option("--load-path", flags.load_path, "Accelerate's name of --from-hf and --load");
  command->add_option("--save-path", flags.save_path, "Accelerate's name of --save and --to-hf");
  command->add_flag("--convert-checkpoint-from-megatron-to-transformers", flags.to_transformers,
                    "With --load-path and --save-path: export");
  command->add_flag("--print-checkpoint-structure", flags.print_structure, "List the tensors");
  for (const char* name : {"--target-tensor-model-parallel-size", "--target-pipeline-model-parallel-size",
                           "--target-data-parallel-size", "--make-vocab-size-divisible-by"}) {
    command->add_option_function<int64_t>(
        name, [&flags, name](const int64_t&) { flags.without_effect.emplace_back(name); },
        "Without effect here");
  }
  command->add_flag_callback(
      "--use-distributed-optimizer",
      [&flags] { flags.without_effect.emplace_back("--use-distributed-optimizer"); }, "Without effect here");
}

}  // namespace

int ckpt_command(std::span<const std::string> args) {
  Flags flags;
  CLI::App app("Look at checkpoints, check them, convert them", "teratron ckpt");
  app.require_subcommand(1);
  for (const char* name : {"inspect", "verify"}) {
    CLI::App* const command =
        app.add_subcommand(name, name == std::string("inspect") ? "What a checkpoint holds"
                                                                : "Read every byte against its hash");
    command->add_option("directory", flags.directory, "A --save folder, or one iter_* in it")->required();
    command->add_option("--ckpt-step", flags.step, "Iteration; default the newest");
    if (name == std::string("inspect"))
      command->add_flag("--tensors", flags.list_tensors, "List the tensors");
  }
  add_convert(app, flags);
  if (!parse_command(app, args)) return 0;
  if (app.got_subcommand("inspect")) return inspect(flags);
  if (app.got_subcommand("verify")) return verify(flags);
  return convert(flags);
}

}  // namespace teratron
