#include "teratron/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "teratron/base/error.h"
#include "teratron/tokenizer/byte_alphabet.h"

namespace teratron {
namespace {

constexpr size_t kShortWord = 48;  // up to here a scan for the best pair beats a heap

UserError bad_vocab(const BpeSpec& spec, std::string what) {
  return data_error(
      {.what = std::move(what), .where = spec.where, .fix = "use the tokenizer's original files"});
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeModel::BpeModel(const BpeSpec& spec) : fuse_unk_(spec.fuse_unk), ignore_merges_(spec.ignore_merges) {
  read_vocab(spec);
  read_merges(spec);
  find_whole_words();
}

void BpeModel::read_vocab(const BpeSpec& spec) {
  // Ids may leave gaps for added tokens, but a table by id must stay in proportion to the file.
  const int64_t limit = static_cast<int64_t>(spec.vocab.size()) * 8 + 65536;
  ids_.reserve(spec.vocab.size());
  for (const auto& [spelling, id] : spec.vocab) {
    if (id < 0 || id >= limit) {
      throw bad_vocab(spec, fmt::format("id {} of token '{}' is out of range (0 to {})", id,
                                        printable(spelling), limit - 1));
    }
    if (!ids_.emplace(spelling, id).second) {
      throw bad_vocab(spec, fmt::format("token '{}' appears twice", printable(spelling)));
    }
    if (id >= id_bound()) token_bytes_.resize(static_cast<size_t>(id) + 1);
    std::string& bytes = token_bytes_[id];
    if (!bytes.empty()) throw bad_vocab(spec, fmt::format("id {} belongs to two tokens", id));
    bytes = unspell_bytes(spelling).value_or(spelling);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids_.find(spell_bytes(std::string(1, static_cast<char>(byte))));
    byte_ids_[byte] = found == ids_.end() ? -1 : found->second;
    all_bytes_ = all_bytes_ && found != ids_.end();
  }
  if (spec.unk_token.empty()) return;
  const auto unk = ids_.find(spec.unk_token);
  if (unk == ids_.end())
    throw bad_vocab(spec, fmt::format("unk_token '{}' is not in the vocabulary", printable(spec.unk_token)));
  unk_ = unk->second;
}

void BpeModel::read_merges(const BpeSpec& spec) {
  const size_t slots = std::bit_ceil(std::max<size_t>(spec.merges.size() * 2, 16));
  pair_shift_ = 64 - std::countr_zero(slots);
  pairs_.resize(slots);
  merged_.reserve(spec.merges.size());
  const auto id = [&](const std::string& token, size_t rank) {
    const auto found = ids_.find(token);
    if (found == ids_.end()) {
      throw bad_vocab(spec, fmt::format("merge {} needs the token '{}', which is not in the vocabulary",
                                        rank + 1, printable(token)));
    }
    return found->second;
  };
  size_t shared = 0;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    merged_.push_back(id(left + right, rank));
    if (!spec.shared_ranks || merged_[shared] != merged_[rank]) shared = rank;
    insert(id(left, rank), id(right, rank), static_cast<uint32_t>(shared));
  }
}

void BpeModel::insert(int32_t left, int32_t right, uint32_t rank) {
  const uint64_t key = pair_key(left, right);
  size_t slot = slot_of(key);
  while (pairs_[slot].pair != kNoPair && pairs_[slot].pair != key) slot = (slot + 1) & (pairs_.size() - 1);
  pairs_[slot] = {key, rank};  // of a repeated merge the last one counts, as in the reference
}

uint32_t BpeModel::rank_of(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  for (size_t slot = slot_of(key);; slot = (slot + 1) & (pairs_.size() - 1)) {
    if (pairs_[slot].pair == key) return pairs_[slot].rank;
    if (pairs_[slot].pair == kNoPair) return kNoRank;
  }
}

void BpeModel::find_whole_words() {
  std::vector<int32_t> ids;
  for (const auto& [spelling, id] : ids_) {
    if (!unspell_bytes(spelling)) continue;
    const std::string_view word = token_bytes_[id];
    if (word.empty()) continue;
    if (ignore_merges_) {
      byte_words_.emplace(word, id);
      whole_words_.emplace_back(word, id);
      continue;
    }
    ids.clear();
    encode_word(word, ids);
    if (ids.size() == 1 && ids[0] == id) whole_words_.emplace_back(word, id);
  }
}

void BpeModel::start_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  bool after_unknown = false;
  for (size_t i = 0; i < word.size(); ++i) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(word[i])];
    if (id >= 0) {
      symbols.push_back(id);
    } else if (unk_ >= 0 && !(after_unknown && fuse_unk_)) {
      symbols.push_back(unk_);
    }
    after_unknown = id < 0;
  }
}

void BpeModel::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto found = byte_words_.find(word); found != byte_words_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  if (all_bytes_ && word.size() <= kShortWord) {
    int32_t symbols[kShortWord];
    for (size_t i = 0; i < word.size(); ++i) symbols[i] = byte_ids_[static_cast<uint8_t>(word[i])];
    merge_short(symbols, word.size(), ids);
    return;
  }
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  start_symbols(word, symbols);
  if (symbols.size() <= kShortWord) {
    merge_short(symbols.data(), symbols.size(), ids);
  } else {
    merge_long(symbols, ids);
  }
}

void BpeModel::merge_short(int32_t* symbols, size_t count, std::vector<int32_t>& ids) const {
  uint32_t ranks[kShortWord];
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_of(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    symbols[best] = merged_[ranks[best]];
    --count;
    std::copy(symbols + best + 2, symbols + count + 1, symbols + best + 1);
    if (best + 1 < count) std::copy(ranks + best + 2, ranks + count, ranks + best + 1);
    if (best > 0) ranks[best - 1] = rank_of(symbols[best - 1], symbols[best]);
    if (best + 1 < count) ranks[best] = rank_of(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols, symbols + count);
}

void BpeModel::merge_long(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const {
  struct Node {
    int32_t id;
    int64_t before, after;
  };
  struct Candidate {
    uint32_t rank;
    int64_t at;
    int32_t left, right;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  const auto count = static_cast<int64_t>(symbols.size());
  std::vector<Node> nodes(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int64_t at) {
    if (at < 0 || nodes[at].after >= count) return;
    const int32_t left = nodes[at].id;
    const int32_t right = nodes[nodes[at].after].id;
    const uint32_t rank = rank_of(left, right);
    if (rank != kNoRank) queue.push({rank, at, left, right});
  };
  for (int64_t i = 0; i < count; ++i) nodes[i] = {symbols[i], i - 1, i + 1};
  for (int64_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Node& node = nodes[top.at];
    // Stale: one of the two was merged meanwhile. A merged-away node carries -1.
    if (node.id != top.left || node.after >= count || nodes[node.after].id != top.right) continue;
    Node& gone = nodes[node.after];
    node.id = merged_[top.rank];
    gone.id = -1;
    node.after = gone.after;
    if (node.after < count) nodes[node.after].before = top.at;
    offer(node.before);
    offer(top.at);
  }
  for (int64_t i = 0; i < count; i = nodes[i].after) ids.push_back(nodes[i].id);
}

std::string_view BpeModel::bytes_of(int32_t id) const {
  return id >= 0 && id < id_bound() ? std::string_view(token_bytes_[id]) : std::string_view();
}

std::optional<int32_t> BpeModel::id_of(const std::string& spelling) const {
  const auto found = ids_.find(spelling);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace teratron
