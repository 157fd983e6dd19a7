// A tokenizer turns text into token ids and back. All are thread-safe after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// Ids of the tokens with a meaning of their own; absent where the vocabulary has none.
struct SpecialTokens {
  std::optional<int32_t> eod, bos, eos, pad, cls, sep, mask;
  std::vector<int32_t> additional;  // in order, e.g. T5's sentinels
};

/// A token and the characters (code points) [begin, end) of the text that it stands for, as Hugging Face tokenizers
/// counts them: a token that holds some bytes of a character has all of it; tokens around the text have 0, 0.
/// Megatron-LM's `offsets` are the begins.
struct TokenSpan {
  int32_t id;
  int64_t begin, end;
  bool operator==(const TokenSpan&) const = default;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Appends the ids of `text` (UTF-8; invalid bytes are treated as U+FFFD) to `ids`.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  /// The same ids with their places. Slower: for looking at tokens, not for streams of them.
  virtual std::vector<TokenSpan> encode_with_offsets(std::string_view text) const = 0;
  /// The text of the ids (bytes of byte-level tokens joined; incomplete UTF-8 at the borders is kept as it is).
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// Number of ids, added tokens included, padding of the embedding excluded.
  virtual int64_t vocab_size() const = 0;
  virtual const SpecialTokens& special() const = 0;
};

struct TokenizerOptions {
  std::string type;  // Megatron's --tokenizer-type: GPT2BPETokenizer, HuggingFaceTokenizer, NullTokenizer...
  std::string vocab_file;
  std::string merge_file;
  /// File or folder with tokenizer.json (also --tokenizer-name-or-path), .model of SentencePiece, ranks of tiktoken.
  std::string tokenizer_model;
  int64_t vocab_size = 0;  // NullTokenizer, TikTokenizer
  int64_t vocab_extra_ids = 0;
  bool include_special_tokens =
      true;  // [CLS] ... [SEP], <|begin_of_text|>: off by --tokenizer-hf-no-include-special-tokens
  std::string compat_version = "0.7";   // ids as of Megatron-LM 2.6, 0.7 or head
  std::string tiktoken_pattern = "v2";  // these three: tiktoken_tokenizer.h
  int64_t tiktoken_num_special_tokens = 1000;
  std::vector<std::string> special_tokens;
};

/// Reads the files and builds the tokenizer. Throws UserError(config) for a missing or unknown option and
/// UserError(data) for a file that is wrong.
std::unique_ptr<Tokenizer> build_tokenizer(const TokenizerOptions& options);

/// Vocabulary rounded up to a multiple of divisible_by * tensor_parallel.
int64_t padded_vocab_size(int64_t vocab_size, int64_t divisible_by, int64_t tensor_parallel);

}  // namespace teratron
