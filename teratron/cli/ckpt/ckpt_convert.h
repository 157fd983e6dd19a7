// `teratron ckpt convert`: from Hugging Face, Megatron-LM or a checkpoint of ours, into any of them.
// Accelerate's tool is called with the same flags: --load_path, --save_path...
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "teratron/hf/convert.h"

namespace teratron {

class CheckpointConversion {
 public:
  /// Adds the subcommand and its flags.
  explicit CheckpointConversion(CLI::App& app);
  ~CheckpointConversion();
  /// After parsing. Returns the exit code.
  int run();

 private:
  struct Flags;
  void resolve_paths();
  void note_what_changes_nothing() const;
  ConversionReport convert() const;
  std::unique_ptr<CheckpointSource> open_source(std::vector<std::string>& notices) const;
  std::unique_ptr<Flags> flags_;
  CLI::App* command_;
};

}  // namespace teratron
