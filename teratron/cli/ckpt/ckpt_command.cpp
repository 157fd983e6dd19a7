#include <chrono>
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/cli/ckpt/checkpoint_format.h"
#include "teratron/cli/ckpt/ckpt_convert.h"
#include "teratron/cli/ckpt/ckpt_megatron.h"
#include "teratron/cli/ckpt/ckpt_merge_lora.h"
#include "teratron/cli/commands.h"
#include "teratron/hf/hf_checkpoint.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

struct Flags {
  std::string directory;
  std::optional<int64_t> step;
  bool list_tensors = false;
};

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
  print("config        {}", nlohmann::json::parse(info.config).dump(2));
  if (flags.list_tensors) print_tensors(info);
  print("use it with --hf {}", printable(flags.directory, 4096));
  return 0;
}

int inspect(const Flags& flags) {
  if (is_hugging_face(flags.directory)) return inspect_hf(flags);
  if (is_megatron(flags.directory)) {
    inspect_megatron(flags.directory, flags.step, flags.list_tensors);
    return 0;
  }
  const CheckpointInfo info = open_checkpoint(locate_checkpoint(flags.directory, flags.step));
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
    verify_megatron(flags.directory, flags.step);
    return 0;
  }
  const fs::path path = locate_checkpoint(flags.directory, flags.step);
  const auto start = std::chrono::steady_clock::now();
  const int64_t bytes = verify_checkpoint(path);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  print("{}: all hashes match ({} bytes, {:.2f} s)", printable(path.string(), 4096), bytes, seconds.count());
  return 0;
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
        ->add_option(
            "directory", flags.directory,
            "a --save folder of Teratron or Megatron-LM, one of its iter_* folders, or a Hugging Face folder")
        ->required();
    command->add_option("--ckpt-step", flags.step, "iteration; default: the newest");
    if (name == std::string("inspect"))
      command->add_flag("--tensors", flags.list_tensors, "list the tensors");
  }
  CheckpointConversion conversion(app);
  LoraMerge merge(app);
  if (!parse_command(app, args)) return 0;
  if (app.got_subcommand("inspect")) return inspect(flags);
  if (app.got_subcommand("verify")) return verify(flags);
  if (app.got_subcommand("merge-lora")) return merge.run();
  return conversion.run();
}

}  // namespace teratron
