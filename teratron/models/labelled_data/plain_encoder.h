// Ids of a text alone, to which a dataset adds the special tokens of its rows.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// Encodes without what the post-processor of a tokenizer.json puts at the ends, which is all that an empty
/// text has.
class PlainEncoder {
 public:
  explicit PlainEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) { tokenizer.encode("", ends_); }
  /// Appends the ids. Thread-safe.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ends_;
};

}  // namespace teratron
