// Hugging Face folders with vocab.json and merges.txt and without tokenizer.json: what transformers makes of
// them depends on the class of the tokenizer.
//
//   GPT2Tokenizer        GPT-2's pattern
//   Qwen2Tokenizer       Qwen2's pattern, behind NFC
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// Whether a folder is one of these.
bool is_vocab_folder(const std::filesystem::path& folder);

/// The class that tokenizer_config.json names, without "Fast", else that of the model_type of config.json;
/// empty if neither names one.
std::string tokenizer_class_of(const std::filesystem::path& folder);

/// UserError(data) for another class, and for invalid files.
std::unique_ptr<Tokenizer> read_vocab_folder(const std::filesystem::path& folder, bool add_special_tokens);

}  // namespace teratron
