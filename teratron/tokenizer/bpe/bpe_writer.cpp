#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/tokenizer/bpe/bpe_trainer.h"

namespace teratron {
namespace {

using Json = nlohmann::ordered_json;

Json vocab_json(const TrainedBpe& bpe) {
  Json vocab = Json::object();
  for (size_t id = 0; id < bpe.tokens.size(); ++id) vocab.push_back({bpe.tokens[id], id});
  return vocab;
}

Json tokenizer_json(const TrainedBpe& bpe) {
  Json added = Json::array();
  const size_t first_special = bpe.tokens.size() - bpe.special_tokens.size();
  for (size_t i = 0; i < bpe.special_tokens.size(); ++i) {
    added.push_back({{"id", first_special + i},
                     {"content", bpe.special_tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  Json merges = Json::array();
  for (const auto& [left, right] : bpe.merges) merges.push_back(left + " " + right);
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab_json(bpe)},
            {"merges", merges}}}};
}

std::string merges_text(const TrainedBpe& bpe) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : bpe.merges) text += fmt::format("{} {}\n", left, right);
  return text;
}

}  // namespace

void write_bpe(const TrainedBpe& bpe, const std::filesystem::path& directory) {
  make_directories(directory, ExitCode::config);
  const auto write = [&](const char* name, const std::string& text) {
    write_text(directory / name, text, ExitCode::config);
  };
  write("vocab.json", vocab_json(bpe).dump());
  write("merges.txt", merges_text(bpe));
  write("tokenizer.json", tokenizer_json(bpe).dump(2));
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  if (!bpe.special_tokens.empty()) {
    config["bos_token"] = bpe.special_tokens[0];
    config["eos_token"] = bpe.special_tokens[0];
  }
  write("tokenizer_config.json", config.dump(2));
}

}  // namespace teratron
