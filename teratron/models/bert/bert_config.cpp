#include "teratron/models/bert/bert_config.h"

#include "teratron/settings/arguments.h"

namespace teratron {

BertConfig bert_config(const Arguments& args, int64_t tokenizer_size) {
  BertConfig config{transformer_config(args)};
  config.mask = Mask::full;
  config.windows.clear();
  config.vocabulary = model_vocabulary(args, tokenizer_size);
  config.padded_vocabulary = padded_vocab_size(args, config.vocabulary);
  config.max_positions = args.max_position_embeddings.value();
  config.token_types = args.bert_binary_head ? 2 : 0;
  config.binary_head = args.bert_binary_head;
  config.tied_embeddings = !args.untie_embeddings_and_output_weights;
  config.tanh_head_gelu = args.openai_gelu;
  return config;
}

}  // namespace teratron
