#include "teratron/tokenizer/bpe/pre_tokenizer.h"

namespace teratron {

std::string_view pattern_regex(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::gpt2:
      return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    case SplitPattern::llama3:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case SplitPattern::qwen2:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case SplitPattern::tiktoken_v1:
      return R"([^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
  }
  return {};
}

std::optional<SplitPattern> known_pattern(std::string_view regex) {
  for (const SplitPattern pattern :
       {SplitPattern::gpt2, SplitPattern::llama3, SplitPattern::qwen2, SplitPattern::tiktoken_v1}) {
    if (regex == pattern_regex(pattern)) return pattern;
  }
  return std::nullopt;
}

}  // namespace teratron
