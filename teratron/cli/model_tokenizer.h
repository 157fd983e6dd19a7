// The tokenizer that belongs to a model, for export.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/hf/convert.h"

namespace teratron {

struct ModelTokenizer {
  HfTokenizerFiles files;
  std::optional<int64_t> end_token;  // what ends a document
};

/// As the settings of the checkpoint name it. Where they name none, or its files cannot be read any more, a notice says so
/// and nothing is copied.
ModelTokenizer tokenizer_of(const CheckpointInfo& checkpoint);

/// The files of a Hugging Face folder; UserError(checkpoint) if there are none.
ModelTokenizer tokenizer_in(const std::filesystem::path& folder);

}  // namespace teratron
