#include "teratron/settings/tokenizer_settings.h"

namespace teratron {

TokenizerOptions tokenizer_options(const Arguments& args) {
  return {.type = args.tokenizer_type.value_or(""),
          .vocab_file = args.vocab_file.value_or(""),
          .merge_file = args.merge_file.value_or(""),
          .tokenizer_model = args.tokenizer_model.value_or(""),
          .vocab_size = args.vocab_size.value_or(0),
          .vocab_extra_ids = args.vocab_extra_ids,
          .tiktoken_pattern = args.tiktoken_pattern,
          .tiktoken_num_special_tokens = args.tiktoken_num_special_tokens,
          .special_tokens = args.tokenizer_special_tokens};
}

}  // namespace teratron
