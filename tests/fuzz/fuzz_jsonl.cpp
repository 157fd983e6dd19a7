// Any input of preprocess, JSON lines or text, compressed or not.
#include "tests/fuzz/scratch.h"

#include "teratron/base/error.h"
#include "teratron/data/text/block_tokenizer.h"
#include "teratron/data/text/line_reader.h"
#include "teratron/data/text/punkt.h"
#include "teratron/tokenizer/bpe/bytes_to_unicode.h"
#include "teratron/tokenizer/bpe/gpt2_tokenizer.h"

namespace {

teratron::BpeConfig bytes_and_a_few_words() {
  teratron::BpeConfig spec;
  const auto add = [&](const std::string& token) {
    spec.vocab.emplace_back(token, static_cast<int32_t>(spec.vocab.size()));
  };
  for (int byte = 0; byte < 256; ++byte) add(teratron::byte_encode(std::string(1, static_cast<char>(byte))));
  spec.merges = {{"t", "h"}, {"th", "e"}, {"a", "a"}, {"aa", "aa"}};
  for (const auto& [left, right] : spec.merges) add(left + right);
  add("<|endoftext|>");
  return spec;
}

struct Setup {
  teratron::fuzz::Scratch scratch;
  teratron::Gpt2BpeTokenizer tokenizer{bytes_and_a_few_words(), true};
  teratron::PunktSplitter splitter = teratron::PunktSplitter::english(teratron::SentenceWhitespace::keep);
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Setup setup;
  teratron::PreprocessOptions options{.json_keys = {"text", "t"}, .append_eod = true};
  options.splitter = [](std::string_view text) { return setup.splitter.split(text); };
  // Read as JSON lines, then as a text.
  options.inputs = {setup.scratch.write("a.jsonl", {data, size}), setup.scratch.write("a.txt", {data, size})};
  try {
    teratron::LineReader reader(options.inputs, 4096);
    while (auto block = reader.next()) {
      options.split_sentences = !options.split_sentences;
      teratron::tokenize_block(*std::move(block), options, setup.tokenizer);
    }
  } catch (const teratron::UserError&) {
  }
  return 0;
}
