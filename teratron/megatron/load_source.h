// The door by which commands read a checkpoint of Megatron-LM where they take one of ours: --load and
// --pretrained-checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "teratron/comm/ranks/host_group.h"
#include "teratron/megatron/convert.h"
#include "teratron/settings/arguments.h"
#include "teratron/settings/checkpoint_args.h"

namespace teratron {

struct LoadSource {
  std::string path;
  std::optional<int64_t> step = std::nullopt;
  bool optimizer = false;  // its state is wanted
};

/// Settings and vocabulary of a command, which are taken where the checkpoint does not say them: those that
/// the user gave.
MegatronImport import_for(const LoadSource& source, const ParsedArguments& parsed);
/// What a training has of them, by its `config` (JSON, with tokenizer_vocab_size).
MegatronImport import_for(const LoadSource& source, const std::string& config);

/// The checkpoint on every rank, if it is one of Megatron-LM's: a --save folder, a folder of an iteration, a
/// zip file of these, or a .pt file. Nullptr if it is not, as loading reports. Rank 0 prints the notices.
/// Collective.
std::unique_ptr<ImportedMegatron> open_megatron_source(const MegatronImport& request, HostGroup& ranks);

/// Its settings, if it is one. Prints a notice if its heads are assumed. Not collective.
std::optional<SavedSettings> read_megatron_settings(const LoadSource& source, const ParsedArguments& parsed);

}  // namespace teratron
