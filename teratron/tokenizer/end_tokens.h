// The tokens that end an answer.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {

/// What the configuration of a Hugging Face model says of special tokens. An eos_token_id is a number or a
/// list.
struct ConfiguredTokens {
  std::vector<int32_t> ends;   // eos_token_id of generation_config.json; without such a file, of config.json
  std::vector<int32_t> eos;    // of config.json
  std::optional<int32_t> bos;  // of config.json
  std::optional<int32_t> pad;  // of config.json
  /// decoder_start_token_id, else bos_token_id: of generation_config.json, else of config.json.
  std::optional<int32_t> decoder_start;

  bool empty() const { return ends.empty() && eos.empty() && !bos && !pad && !decoder_start; }
};

/// From the files in a folder; empty if there are none. UserError(data) for what is not an id.
ConfiguredTokens configured_tokens(const std::filesystem::path& folder);

/// In the settings of an imported checkpoint, JSON, which may have none.
void save_configured_tokens(const ConfiguredTokens& tokens, nlohmann::json& settings);
ConfiguredTokens saved_configured_tokens(const std::string& settings);

/// The folder of a tokenizer's files; empty if it has none.
std::filesystem::path tokenizer_folder(const TokenizerOptions& options);

/// The tokens that the folder of its files configures, and the tokenizer's own. Any of them ends an answer.
std::vector<int32_t> end_tokens(const TokenizerOptions& options, const Tokenizer& tokenizer);

/// Adds `id` unless `ids` has it.
void add_end(std::optional<int32_t> id, std::vector<int32_t>& ids);

}  // namespace teratron
