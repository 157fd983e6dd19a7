// Text to token ids and back. Tokenizers are thread-safe after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// Ids of special tokens; nullopt if the vocabulary has none.
struct SpecialTokens {
  std::optional<int32_t> eod, bos, eos, pad, cls, sep, mask;
  std::vector<int32_t> additional;  // in order, e.g. T5's sentinels
};

/// A token and its offsets [begin, end) in the text, in code points, as in Hugging Face tokenizers: a token
/// with some of the bytes of a code point includes all of it; tokens of the post-processor have (0, 0).
/// Megatron-LM's `offsets` are the begins.
struct TokenSpan {
  int32_t id;
  int64_t begin, end;
  bool operator==(const TokenSpan&) const = default;
};

/// Decodes ids as they come: what all calls of add() return, and then rest(), is decode() of all ids.
class TextDecoder {
 public:
  virtual ~TextDecoder() = default;
  /// The text that is certain with this id, whatever follows; ends between two characters.
  virtual std::string add(int32_t id) = 0;
  /// The text that is left if no id follows.
  virtual std::string rest() const = 0;
  virtual std::unique_ptr<TextDecoder> clone() const = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Appends the ids of `text` (UTF-8; invalid bytes are treated as U+FFFD) to `ids`.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  /// Same ids with offsets; slower.
  virtual std::vector<TokenSpan> encode_with_offsets(std::string_view text) const = 0;
  /// The text of the ids. Bytes of byte-level tokens are concatenated; incomplete UTF-8 is not replaced.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// Number of ids, including added tokens, without padding.
  virtual int64_t vocab_size() const = 0;
  virtual const SpecialTokens& special() const = 0;
  /// By id: whether the token continues a word ("##ing"); empty: every token is a word.
  virtual std::vector<bool> continuation_pieces() const { return {}; }
  /// The tokenizer must outlive it. By default for tokenizers whose text only grows.
  virtual std::unique_ptr<TextDecoder> decoder() const;
  /// Whether texts may leave the id out (skip_special_tokens of transformers). By default those of special().
  virtual bool is_special(int32_t id) const;
};

/// Rounds up to a multiple of divisible_by * tensor_parallel.
int64_t padded_vocab_size(int64_t vocab_size, int64_t divisible_by, int64_t tensor_parallel);

}  // namespace teratron
