// The tokenizer of a Hugging Face folder.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace teratron {

/// Name in a Hugging Face folder -> file.
using HfTokenizerFiles = std::map<std::string, std::filesystem::path>;

/// The tokenizer files in a Hugging Face folder, with the chat template, the settings of processors and
/// generation_config.json, which names special tokens; may be none.
HfTokenizerFiles hf_tokenizer_files(const std::filesystem::path& folder);

/// What processors of images read: name -> text. `hf_tokenizer_files()` has these files, too.
nlohmann::json hf_processor_texts(const std::filesystem::path& folder);

/// These files as Megatron-LM's settings: tokenizer_type and absolute paths. Empty if there are none.
nlohmann::json hf_tokenizer_settings(const std::filesystem::path& folder);

/// The folder in the cache of huggingface_hub (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface) that holds the
/// published model `name`, such as "gpt2" or "Qwen/Qwen2.5-0.5B"; nullopt if it was never downloaded.
std::optional<std::filesystem::path> cached_hf_folder(const std::string& name);
/// Likewise of a dataset.
std::optional<std::filesystem::path> cached_hf_dataset(const std::string& name);

}  // namespace teratron
