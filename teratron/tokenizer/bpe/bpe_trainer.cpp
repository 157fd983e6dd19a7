#include "teratron/tokenizer/bpe/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "teratron/base/error.h"
#include "teratron/tokenizer/bpe/bytes_to_unicode.h"
#include "teratron/tokenizer/bpe/pre_tokenizer.h"

namespace teratron {
namespace {

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using WordCounts = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;

WordCounts count_words(const DocumentSource& documents) {
  const PreTokenizer pre_tokenizer;
  WordCounts counts;
  std::string document;
  while (documents(document)) {
    if (!unicode::is_valid(document)) document = unicode::replace_invalid(document);
    pre_tokenizer.split(SplitPattern::gpt2, document, [&](const char* word, size_t bytes) {
      const std::string_view key(word, bytes);
      if (const auto found = counts.find(key); found != counts.end()) {
        ++found->second;
      } else {
        counts.emplace(key, 1);
      }
    });
  }
  return counts;
}

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    const uint64_t key = static_cast<uint64_t>(pair.first) << 32 | static_cast<uint32_t>(pair.second);
    return key * 0x9e3779b97f4a7c15u >> 20;
  }
};

struct Word {
  std::vector<int32_t> symbols;
  int64_t count;
};

struct PairUse {
  int64_t count = 0;
  std::vector<uint32_t> words;  // that may contain the pair; may have duplicates
};

struct Candidate {
  int64_t count;
  Pair pair;
  bool operator<(const Candidate& o) const { return count != o.count ? count < o.count : pair > o.pair; }
};

class Trainer {
 public:
  Trainer(const WordCounts& counts, const BpeTrainerOptions& options);
  TrainedBpe train();

 private:
  void merge_everywhere(const Pair& pair, int32_t merged);
  void merge_in(uint32_t index, const Pair& pair, int32_t merged);
  void update_count(const Pair& pair, int64_t by, uint32_t word);

  const BpeTrainerOptions& options_;
  std::vector<Word> words_;
  std::unordered_map<Pair, PairUse, PairHash> uses_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> new_pairs_;  // created by the current merge
  TrainedBpe result_;
};

Trainer::Trainer(const WordCounts& counts, const BpeTrainerOptions& options) : options_(options) {
  std::array<int32_t, 256> byte_ids{};
  for (const uint8_t byte : bytes_in_unicode_order()) {
    byte_ids[byte] = static_cast<int32_t>(result_.tokens.size());
    result_.tokens.push_back(byte_encode(std::string(1, static_cast<char>(byte))));
  }
  words_.reserve(counts.size());
  for (const auto& [text, count] : counts) {
    Word word{.symbols = {}, .count = count};
    for (const char byte : text) word.symbols.push_back(byte_ids[static_cast<uint8_t>(byte)]);
    const auto index = static_cast<uint32_t>(words_.size());
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      update_count({word.symbols[i], word.symbols[i + 1]}, count, index);
    }
    words_.push_back(std::move(word));
  }
  for (const auto& [pair, use] : uses_) queue_.push({use.count, pair});
}

void Trainer::update_count(const Pair& pair, int64_t by, uint32_t word) {
  PairUse& use = uses_[pair];
  use.count += by;
  if (by > 0 && (use.words.empty() || use.words.back() != word)) use.words.push_back(word);
}

void Trainer::merge_in(uint32_t index, const Pair& pair, int32_t merged) {
  Word& word = words_[index];
  std::vector<int32_t>& symbols = word.symbols;
  size_t out = 0;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (i + 1 == symbols.size() || symbols[i] != pair.first || symbols[i + 1] != pair.second) {
      symbols[out++] = symbols[i];
      continue;
    }
    if (out > 0) {
      update_count({symbols[out - 1], pair.first}, -word.count, index);
      update_count({symbols[out - 1], merged}, word.count, index);
      new_pairs_.push_back({symbols[out - 1], merged});
    }
    symbols[out++] = merged;
    ++i;
    if (i + 1 < symbols.size()) {
      update_count({pair.second, symbols[i + 1]}, -word.count, index);
      update_count({merged, symbols[i + 1]}, word.count, index);
      new_pairs_.push_back({merged, symbols[i + 1]});
    }
  }
  symbols.resize(out);
}

void Trainer::merge_everywhere(const Pair& pair, int32_t merged) {
  const std::vector<uint32_t> words = std::move(uses_[pair].words);
  new_pairs_.clear();
  for (const uint32_t index : words) merge_in(index, pair, merged);
  std::sort(new_pairs_.begin(), new_pairs_.end());
  new_pairs_.erase(std::unique(new_pairs_.begin(), new_pairs_.end()), new_pairs_.end());
  for (const Pair& created : new_pairs_) {
    if (const int64_t count = uses_[created].count; count > 0) queue_.push({count, created});
  }
}

TrainedBpe Trainer::train() {
  std::unordered_map<std::string, int32_t> ids;
  for (size_t id = 0; id < result_.tokens.size(); ++id)
    ids.emplace(result_.tokens[id], static_cast<int32_t>(id));
  const std::unordered_set<std::string> special(options_.special_tokens.begin(),
                                                options_.special_tokens.end());
  const size_t room = static_cast<size_t>(options_.vocab_size) - options_.special_tokens.size();
  while (result_.tokens.size() < room && !queue_.empty()) {
    const Candidate top = queue_.top();
    queue_.pop();
    if (const int64_t now = uses_[top.pair].count; now != top.count) {
      queue_.push({now, top.pair});  // counts in the queue are upper bounds
      continue;
    }
    if (top.count < std::max<int64_t>(options_.min_frequency, 1)) break;
    const std::string& left = result_.tokens[top.pair.first];
    const std::string& right = result_.tokens[top.pair.second];
    const std::string token = left + right;
    if (special.contains(token)) continue;
    const auto [entry, is_new] = ids.emplace(token, static_cast<int32_t>(result_.tokens.size()));
    result_.merges.emplace_back(left, right);
    if (is_new) result_.tokens.push_back(token);
    merge_everywhere(top.pair, entry->second);
  }
  result_.special_tokens = options_.special_tokens;
  result_.tokens.insert(result_.tokens.end(), options_.special_tokens.begin(), options_.special_tokens.end());
  return std::move(result_);
}

void check(const BpeTrainerOptions& options) {
  const auto reject = [](std::string what, std::string where, std::string fix) {
    throw config_error({.what = std::move(what), .where = std::move(where), .fix = std::move(fix)});
  };
  const int64_t least = 256 + static_cast<int64_t>(options.special_tokens.size());
  if (options.vocab_size < least || options.vocab_size > INT32_MAX) {
    reject(fmt::format("a vocabulary of {} is too small for 256 bytes and {} special tokens",
                       options.vocab_size, options.special_tokens.size()),
           "--vocab-size", fmt::format("use {} to {}", least, INT32_MAX));
  }
  std::unordered_set<std::string> seen;
  for (const std::string& token : options.special_tokens) {
    const auto bytes = unicode::is_valid(token) ? byte_decode(token) : std::nullopt;
    if (token.empty() || (bytes && bytes->size() == 1) || !seen.insert(token).second) {
      reject(fmt::format("special token '{}' is empty, a single byte, or a duplicate", printable(token)),
             "--special-tokens", "list each special token once, with at least two characters");
    }
  }
}

}  // namespace

TrainedBpe train_bpe(const DocumentSource& documents, const BpeTrainerOptions& options) {
  check(options);
  const WordCounts counts = count_words(documents);
  if (counts.empty()) throw data_error({.what = "the input has no text", .fix = "pass files with text"});
  return Trainer(counts, options).train();
}

}  // namespace teratron
