// Tokenizer flags, shared by the subcommands.
#pragma once

#include <string>
#include <vector>

#include "teratron/settings/arguments.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {

/// The settings of the tokenizer, and what only these commands choose.
struct TokenizerFlags {
  Arguments settings = {};
  bool include_special_tokens = true;
  std::string compat_version = "0.7";

  /// Rows that write to this object.
  std::vector<Field> fields();
  TokenizerOptions options() const;
};

}  // namespace teratron
