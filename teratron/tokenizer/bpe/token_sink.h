// Where a byte-level tokenizer puts what it finds in a text: ids only, or ids with the characters that they stand for.
#pragma once

#include <vector>

#include "teratron/tokenizer/bpe/pre_split.h"
#include "teratron/tokenizer/bpe/word_cache.h"
#include "teratron/tokenizer/tokenizer.h"
#include "teratron/tokenizer/unicode/aligned_text.h"

namespace teratron {

class TokenSink {
 public:
  virtual ~TokenSink() = default;
  /// All words of a text.
  virtual void words(SplitPattern pattern, AlignedView text) = 0;
  virtual void word(AlignedView word) = 0;
  /// A token that is not the model's; no text for one that is put around all.
  virtual void token(int32_t id, AlignedView text) = 0;
};

class IdSink final : public TokenSink {
 public:
  IdSink(WordCachePool& caches, std::vector<int32_t>& ids) : cache_(caches), ids_(ids) {}
  void words(SplitPattern pattern, AlignedView text) override;
  void word(AlignedView word) override;
  void token(int32_t id, AlignedView text) override;

 private:
  WordCachePool::Lease cache_;
  std::vector<int32_t>& ids_;
};

/// For tracked texts.
class SpanSink final : public TokenSink {
 public:
  explicit SpanSink(const BpeModel& model) : model_(model) {}
  void words(SplitPattern pattern, AlignedView text) override;
  void word(AlignedView word) override;
  void token(int32_t id, AlignedView text) override;
  std::vector<TokenSpan> take() { return std::move(spans_); }

 private:
  const BpeModel& model_;
  std::vector<TokenSpan> spans_;
};

}  // namespace teratron
