#include "teratron/tokenizer/bpe/token_sink.h"

#include <algorithm>

namespace teratron {

void IdSink::words(SplitPattern pattern, AlignedView text) {
  (*cache_).encode_words(pattern, text.text, ids_);
}

void IdSink::word(AlignedView word) {
  (*cache_).encode(word.text, ids_);
}

void IdSink::token(int32_t id, AlignedView) {
  ids_.push_back(id);
}

void SpanSink::words(SplitPattern pattern, AlignedView text) {
  PreSplitter().split(pattern, text.text,
                      [&](const char* begin, size_t bytes) { word(text.part({begin, bytes})); });
}

void SpanSink::word(AlignedView word) {
  std::vector<int32_t> ids;
  model_.encode_word(word.text, ids);
  emit_pieces(model_, ids, word, [&](int32_t id, AlignedView piece) { token(id, piece); });
}

void SpanSink::token(int32_t id, AlignedView text) {
  const Characters characters = text.characters();
  spans_.push_back({id, characters.begin, characters.end});
}

}  // namespace teratron
