#include "teratron/tokenizer/hf/exported_json.h"

#include <array>
#include <utility>

namespace teratron {

using Json = nlohmann::ordered_json;

std::string exported_tokenizer_json(const std::vector<ExportedToken>& added, Json parts, Json model) {
  Json tokens = Json::array();
  for (const ExportedToken& token : added) {
    tokens.push_back({{"id", token.id},
                      {"content", token.content},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", token.special}});
  }
  Json file = {{"version", "1.0"},          {"truncation", nullptr},
               {"padding", nullptr},        {"added_tokens", std::move(tokens)},
               {"normalizer", nullptr},     {"pre_tokenizer", nullptr},
               {"post_processor", nullptr}, {"decoder", nullptr}};
  for (const auto& [name, part] : parts.items()) file[name] = part;
  file["model"] = std::move(model);
  return file.dump() + "\n";
}

std::string exported_tokenizer_config(const SpecialTokens& special,
                                      const std::map<int32_t, std::string>& content_of) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  const std::array<std::pair<const char*, std::optional<int32_t>>, 6> names = {
      {{"bos_token", special.bos},
       {"eos_token", special.eos ? special.eos : special.eod},
       {"pad_token", special.pad},
       {"cls_token", special.cls},
       {"sep_token", special.sep},
       {"mask_token", special.mask}}};
  for (const auto& [name, id] : names) {
    if (id && content_of.contains(*id)) config[name] = content_of.at(*id);
  }
  return config.dump(2) + "\n";
}

}  // namespace teratron
