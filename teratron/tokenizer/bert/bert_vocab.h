// BertWordPieceLowerCase and BertWordPieceCase, from vocab.txt. Versions of Megatron-LM differ:
//
//                          up to 0.7                                  head (Hugging Face tokenizers)
//   character classes      Python's unicodedata                       the library's; private-use and
//                                                                     unassigned code points are dropped
//   max word length        200 characters                             100
//   [MASK] etc. in text    ordinary text                              special tokens
//   post-processor         none                                       [CLS] ... [SEP], optional
//   vocabulary             [BOS], [EOS] and the sentinels are added   sentinels only (BertWordPieceCase: 100)
#pragma once

#include <map>
#include <string>

#include "teratron/tokenizer/bert/wordpiece_tokenizer.h"

namespace teratron {

struct BertOptions {
  std::string vocab_file;
  bool lower_case = true;
  int64_t extra_ids = 0;               // sentinels <extra_id_0>...
  bool head = false;                   // as Megatron-LM head
  bool include_special_tokens = true;  // head only: [CLS] ... [SEP]
};

/// UserError(data) if the vocabulary lacks [CLS], [SEP], [PAD], [MASK] or [UNK].
WordPieceConfig read_bert_vocab(const BertOptions& options);

/// tokenizer.json and tokenizer_config.json, name -> contents, with the vocabulary of read_bert_vocab().
/// transformers adds [CLS] ... [SEP] and finds [MASK] etc. in the text, whatever the version did.
std::map<std::string, std::string> hf_files_of_bert(const BertOptions& options);

}  // namespace teratron
