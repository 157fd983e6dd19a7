#include "teratron/cli/tokenizer_flags.h"

#include "teratron/settings/component_options.h"

namespace teratron {

std::vector<Field> TokenizerFlags::fields() {
  std::vector<Field> rows;
  for (const Field& field : arguments_schema().fields()) {
    if (field.group == "Tokenizer") rows.push_back(bound_setting(field.name, &settings));
    if (field.name == "tokenizer_model") rows.back().traits.aliases = "--tokenizer-name-or-path";
  }
  rows.push_back(
      bound_field("tokenizer_hf_include_special_tokens", &include_special_tokens,
                  "Add special tokens such as [CLS] ... [SEP] or <|begin_of_text|>",
                  {.off = "--tokenizer-hf-no-include-special-tokens",
                   .off_help = "Add no special tokens such as [CLS] ... [SEP] or <|begin_of_text|>"}));
  rows.push_back(bound_field("compat_version", &compat_version,
                             "Match the ids and files of Megatron-LM 2.6, 0.7 or head"));
  return rows;
}

TokenizerOptions TokenizerFlags::options() const {
  TokenizerOptions options = tokenizer_options(settings);
  options.include_special_tokens = include_special_tokens;
  options.compat_version = compat_version;
  return options;
}

}  // namespace teratron
