#include <chrono>
#include <optional>

#include <nlohmann/json.hpp>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/nodes/saved_nodes.h"
#include "teratron/cli/ckpt/ckpt_convert.h"
#include "teratron/cli/ckpt/ckpt_megatron.h"
#include "teratron/cli/ckpt/ckpt_merge_lora.h"
#include "teratron/cli/ckpt/removal_on_signal.h"
#include "teratron/cli/ckpt/tensor_list.h"
#include "teratron/cli/commands.h"
#include "teratron/hf/hf_checkpoint.h"
#include "teratron/megatron/checkpoint_format.h"
#include "teratron/settings/arguments.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

struct Flags {
  std::string directory;
  Arguments settings;  // ckpt_step
  bool list_tensors = false;
};

int64_t numel(const TensorInfo& tensor) {
  int64_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;
  return count;
}

void print_tensors(const CheckpointInfo& info, bool all) {
  std::vector<ListedTensor> tensors;
  for (const auto& [name, tensor] : info.tensors)
    tensors.push_back(
        {name, fmt::format("{:<5} [{}]", name_of(tensor.dtype), fmt::join(tensor.shape, ", "))});
  print("tensors");
  for (const std::string& line : tensor_lines(tensors, all)) print_line(line);
}

int inspect_hf(const Flags& flags) {
  const HfCheckpoint checkpoint(flags.directory);
  const CheckpointInfo& info = checkpoint.info();
  int64_t weights = 0;
  for (const auto& [name, tensor] : info.tensors) weights += numel(tensor);
  print("checkpoint    {}", printable(info.path.string(), 4096));
  print("format        Hugging Face, {}",
        nlohmann::json::parse(info.config)["hf_model_type"].get<std::string>());
  print("size          {} bytes in {} tensors", info.bytes, info.tensors.size());
  print("weights       {} elements", weights);
  print_tensors(info, flags.list_tensors);
  print("config        {}", nlohmann::json::parse(info.config).dump(2));
  print("use it with --hf {}", printable(flags.directory, 4096));
  return 0;
}

int inspect(const Flags& flags) {
  if (is_hugging_face(flags.directory)) return inspect_hf(flags);
  if (is_megatron(flags.directory)) {
    inspect_megatron(flags.directory, flags.settings.ckpt_step, flags.list_tensors);
    return 0;
  }
  const CheckpointInfo info = open_checkpoint(locate_checkpoint(flags.directory, flags.settings.ckpt_step));
  int64_t weights = 0;
  int64_t others = 0;
  for (const auto& [name, tensor] : info.tensors) {
    (name.starts_with("optimizer.") ? others : weights) += numel(tensor);
  }
  print("checkpoint    {}", printable(info.path.string(), 4096));
  print("iteration     {}", info.iteration);
  print("written by    {} ranks, save {}", info.ranks, info.run_id);
  for (const std::string& line : describe_shards_here(info.path)) print("              {}", line);
  print("size          {} bytes in {} tensors", info.bytes, info.tensors.size());
  print("weights       {} elements", weights);
  print("optimizer     {} elements", others);
  print_tensors(info, flags.list_tensors);
  print("config        {}", nlohmann::json::parse(info.config).dump(2));
  print("state         {}", nlohmann::json::parse(info.state).dump(2));
  return 0;
}

// Opening it has accounted for every tensor.
int verify_hf(const std::string& directory) {
  const int64_t bytes = HfCheckpoint(directory).files().verify();
  const std::string where = printable(directory, 4096);
  if (bytes > 0) print("{}: complete, and all checksums match ({} bytes)", where, bytes);
  if (bytes == 0) print("{}: complete; files of this format have no checksums", where);
  return 0;
}

int verify(const Flags& flags) {
  if (is_hugging_face(flags.directory)) return verify_hf(flags.directory);
  if (is_megatron(flags.directory)) {
    verify_megatron(flags.directory, flags.settings.ckpt_step);
    return 0;
  }
  const fs::path path = locate_checkpoint(flags.directory, flags.settings.ckpt_step);
  const auto start = std::chrono::steady_clock::now();
  const int64_t bytes = verify_checkpoint(path);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const std::vector<std::string> nodes = describe_shards_here(path);
  print("{}: all hashes {}match ({} bytes, {:.2f} s)", printable(path.string(), 4096),
        nodes.empty() ? "" : "of the shards here ", bytes, seconds.count());
  for (const std::string& line : nodes) print_line(line);
  return 0;
}

using Args = std::span<const std::string>;

std::vector<Field> source_fields(Flags& flags) {
  return {
      bound_field("directory", &flags.directory,
                  "A --save folder of Teratron or Megatron-LM, one of its iter_* folders, or a Hugging Face "
                  "folder",
                  {.required = true, .positional = true}),
      bound_setting("ckpt_step", &flags.settings)};
}

int inspect_command(Args args) {
  Flags flags;
  std::vector<Field> fields = source_fields(flags);
  fields.push_back(
      bound_field("tensors", &flags.list_tensors,
                  "List every tensor, the optimizer's too, instead of those of all layers as one"));
  return read_command({.name = "teratron ckpt inspect",
                       .example = "teratron ckpt inspect checkpoints",
                       .usage = "DIRECTORY [FLAGS]",
                       .summary = "Show the contents of a checkpoint.",
                       .fields = fields},
                      args)
             ? inspect(flags)
             : 0;
}

int verify_command(Args args) {
  Flags flags;
  return read_command({.name = "teratron ckpt verify",
                       .example = "teratron ckpt verify checkpoints",
                       .usage = "DIRECTORY [FLAGS]",
                       .summary = "Check every byte of a checkpoint against its hash.",
                       .fields = source_fields(flags)},
                      args)
             ? verify(flags)
             : 0;
}

}  // namespace

int ckpt_command(std::span<const std::string> args) {
  const RemovalOnSignal removal;
  const Subcommand subcommands[] = {
      {"inspect", "show the contents of a checkpoint", inspect_command},
      {"verify", "check every byte against its hash", verify_command},
      {"convert", "convert from and to Hugging Face and Megatron-LM", convert_command},
      {"merge-lora", "add LoRA adapters to the weights", merge_lora_command}};
  return run_subcommand({"teratron ckpt", "teratron ckpt inspect checkpoints"}, subcommands, args);
}

}  // namespace teratron
