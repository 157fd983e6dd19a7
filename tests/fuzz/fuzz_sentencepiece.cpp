// Any .model of SentencePiece: it is refused, or it encodes and decodes.
#include "tests/fuzz/scratch.h"

#include "teratron/base/error.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const teratron::fuzz::Scratch scratch;
  const std::string path = scratch.write("a.model", {data, size});
  try {
    const teratron::SentencePieceModel model(teratron::read_sentencepiece(path));
    std::vector<int32_t> ids;
    model.encode("Hello, the world's 12345  caf\u00e9\n\n\t \u65e5\u672c \u2581 \ufb01 aaaa", ids);
    model.decode(ids);
    for (int32_t id = 0; id < model.size(); ++id) model.decode(std::vector<int32_t>{id, 0, id});
  } catch (const teratron::UserError&) {
  }
  return 0;
}
