#include "teratron/models/bert/bert_config.h"

#include "teratron/settings/arguments.h"

namespace teratron {

BertConfig bert_config(const Arguments& args, int64_t tokenizer_size) {
  BertConfig config{language_model_config(args, tokenizer_size)};
  config.mask = Mask::full;
  config.windows.clear();
  config.token_types = args.bert_binary_head ? 2 : 0;
  config.binary_head = args.bert_binary_head;
  config.tanh_head_gelu = args.openai_gelu;
  return config;
}

}  // namespace teratron
