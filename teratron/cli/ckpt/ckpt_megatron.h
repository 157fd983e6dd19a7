// ckpt convert --from-megatron and --to-megatron.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "teratron/base/config/config.h"
#include "teratron/base/dtype.h"
#include "teratron/hf/convert.h"
#include "teratron/megatron/convert.h"

namespace teratron {

struct MegatronFlags {
  std::filesystem::path source;
  std::optional<int64_t> step;
  std::optional<Dtype> dtype;
  std::span<const std::string> settings;  // flags of `pretrain`: what the checkpoint does not say
  bool optimizer = true;                  // false: weights alone
};

std::unique_ptr<ImportedMegatron> open_megatron(const MegatronFlags& flags);

void print_megatron_structure(const std::filesystem::path& source, std::optional<int64_t> step);
void inspect_megatron(const std::filesystem::path& source, std::optional<int64_t> step, bool list_tensors);
void verify_megatron(const std::filesystem::path& source, std::optional<int64_t> step);

/// The layout that Megatron-LM's files are cut for.
struct MegatronLayoutFlags {
  std::string to_megatron;  // folder; empty: no export
  std::optional<int64_t> tensor_ranks, stages, expert_ranks, data_ranks, vocabulary_divisor;
  bool distributed_optimizer = false;
  bool weights_only = false;
  std::string names;  // empty: by the model
  std::string format = "torch";

  /// Rows that write to this object.
  std::vector<Field> fields();
  /// Flags of the layout that were given; conversions to other formats ignore them.
  std::vector<std::string> given() const;
};

ConversionReport convert_to_megatron(const CheckpointSource& checkpoint, const MegatronLayoutFlags& flags,
                                     std::optional<Dtype> dtype);

}  // namespace teratron
