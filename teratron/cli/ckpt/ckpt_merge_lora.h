// `teratron ckpt merge-lora`: adds LoRA adapters to the weights beside which they were trained.
#pragma once

#include <memory>

#include <CLI/CLI.hpp>

namespace teratron {

class LoraMerge {
 public:
  /// Adds the subcommand and its flags.
  explicit LoraMerge(CLI::App& app);
  ~LoraMerge();
  /// After parsing. Returns the exit code.
  int run();

 private:
  struct Flags;
  std::unique_ptr<Flags> flags_;
};

}  // namespace teratron
