// Any tokenizer.json: it is refused, or it encodes and decodes.
#include "tests/fuzz/scratch.h"

#include "teratron/base/error.h"
#include "teratron/tokenizer/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const teratron::fuzz::Scratch scratch;
  const std::string path = scratch.write("tokenizer.json", {data, size});
  try {
    const auto tokenizer = teratron::read_tokenizer_json(path, {}, true);
    std::vector<int32_t> ids;
    tokenizer->encode("Hello, the world's 12345  caf\u00e9\n\n\t \u65e5\u672c <|endoftext|>aaaa", ids);
    tokenizer->decode(ids);
  } catch (const teratron::UserError&) {
  }
  return 0;
}
