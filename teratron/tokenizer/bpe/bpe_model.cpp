#include "teratron/tokenizer/bpe/bpe_model.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "teratron/base/error.h"
#include "teratron/tokenizer/bpe/bytes_to_unicode.h"

namespace teratron {
namespace {

UserError bad_vocab(const BpeConfig& config, std::string what) {
  return data_error(
      {.what = std::move(what), .where = config.where, .fix = "use the tokenizer's original files"});
}

}  // namespace

BpeModel::BpeModel(const BpeConfig& config)
    : fuse_unk_(config.fuse_unk), ignore_merges_(config.ignore_merges) {
  read_vocab(config);
  read_merges(config);
  find_whole_words();
}

void BpeModel::read_vocab(const BpeConfig& config) {
  // Ids may have gaps for added tokens, but the table by id must stay proportional to the file.
  const int64_t limit =
      std::min(static_cast<int64_t>(config.vocab.size()) * 8 + 65536, int64_t{1} << kIdBits);
  ids_.reserve(config.vocab.size());
  for (const auto& [token, id] : config.vocab) {
    if (id < 0 || id >= limit) {
      throw bad_vocab(config, fmt::format("id {} of token '{}' is out of range (0 to {})", id,
                                          printable(token), limit - 1));
    }
    if (!ids_.emplace(token, id).second) {
      throw bad_vocab(config, fmt::format("token '{}' appears twice", printable(token)));
    }
    if (id >= id_bound()) token_bytes_.resize(static_cast<size_t>(id) + 1);
    std::string& bytes = token_bytes_[id];
    if (!bytes.empty()) throw bad_vocab(config, fmt::format("id {} belongs to two tokens", id));
    bytes = byte_decode(token).value_or(token);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids_.find(byte_encode(std::string(1, static_cast<char>(byte))));
    byte_ids_[byte] = found == ids_.end() ? -1 : found->second;
    all_bytes_ = all_bytes_ && found != ids_.end();
  }
  if (config.unk_token.empty()) return;
  const auto unk = ids_.find(config.unk_token);
  if (unk == ids_.end())
    throw bad_vocab(config,
                    fmt::format("unk_token '{}' is not in the vocabulary", printable(config.unk_token)));
  unk_ = unk->second;
}

void BpeModel::read_merges(const BpeConfig& config) {
  if (config.merges.size() > kNoRank)
    throw bad_vocab(config, fmt::format("{} merges exceed the limit of {}", config.merges.size(), kNoRank));
  const size_t slots = std::bit_ceil(std::max<size_t>(config.merges.size() * 2, 16));
  pair_shift_ = 64 - std::countr_zero(slots);
  pairs_.resize(slots, kNoPair);
  merged_.reserve(config.merges.size());
  const auto id = [&](const std::string& token, size_t rank) {
    const auto found = ids_.find(token);
    if (found == ids_.end()) {
      throw bad_vocab(config, fmt::format("merge {} uses the token '{}', which is not in the vocabulary",
                                          rank + 1, printable(token)));
    }
    return found->second;
  };
  size_t shared = 0;
  for (size_t rank = 0; rank < config.merges.size(); ++rank) {
    const auto& [left, right] = config.merges[rank];
    merged_.push_back(id(left + right, rank));
    if (!config.shared_ranks || merged_[shared] != merged_[rank]) shared = rank;
    insert(id(left, rank), id(right, rank), static_cast<uint32_t>(shared));
  }
  if (!all_bytes_) return;
  byte_ranks_.resize(256 * 256);
  for (size_t pair = 0; pair < byte_ranks_.size(); ++pair)
    byte_ranks_[pair] = rank_of(byte_ids_[pair >> 8], byte_ids_[pair & 0xff]);
}

void BpeModel::insert(int32_t left, int32_t right, uint32_t rank) {
  const uint64_t key = pair_key(left, right);
  size_t slot = slot_of(key);
  while (pairs_[slot] != kNoPair && pairs_[slot] >> kRankBits != key) slot = (slot + 1) & (pairs_.size() - 1);
  pairs_[slot] = key << kRankBits | rank;  // the last one of repeated merges counts, as in the reference
}

uint32_t BpeModel::rank_of(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  for (size_t slot = slot_of(key);; slot = (slot + 1) & (pairs_.size() - 1)) {
    const uint64_t found = pairs_[slot];
    if (found >> kRankBits == key || found == kNoPair) return static_cast<uint32_t>(found) & kNoRank;
  }
}

void BpeModel::find_whole_words() {
  std::vector<int32_t> ids;
  for (const auto& [token, id] : ids_) {
    if (!byte_decode(token)) continue;
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

size_t BpeModel::byte_symbols(std::string_view word, int32_t* symbols) const {
  size_t count = 0;
  bool after_unknown = false;
  for (const char byte : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
    if (id >= 0) {
      symbols[count++] = id;
    } else if (unk_ >= 0 && !(after_unknown && fuse_unk_)) {
      symbols[count++] = unk_;
    }
    after_unknown = id < 0;
  }
  return count;
}

size_t BpeModel::encode_short(std::string_view word, int32_t* ids) const {
  if (ignore_merges_) {
    if (const auto found = byte_words_.find(word); found != byte_words_.end()) {
      *ids = found->second;
      return 1;
    }
  }
  uint32_t ranks[kShortWord];
  const size_t count = byte_symbols(word, ids);
  if (all_bytes_) {
    for (size_t i = 0; i + 1 < count; ++i)
      ranks[i] = byte_ranks_[size_t{static_cast<uint8_t>(word[i])} << 8 | static_cast<uint8_t>(word[i + 1])];
  } else {
    for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_of(ids[i], ids[i + 1]);
  }
  return merge_short(ids, ranks, count);
}

void BpeModel::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() <= kShortWord) {
    int32_t symbols[kShortWord];
    ids.insert(ids.end(), symbols, symbols + encode_short(word, symbols));
    return;
  }
  if (ignore_merges_) {
    if (const auto found = byte_words_.find(word); found != byte_words_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  std::vector<int32_t> symbols(word.size());
  symbols.resize(byte_symbols(word, symbols.data()));
  merge_long(symbols, ids);
}

/// `ranks[i]`: of symbols i and i + 1.
size_t BpeModel::merge_short(int32_t* symbols, uint32_t* ranks, size_t count) const {
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    symbols[best] = merged_[ranks[best]];
    --count;
    for (size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) ranks[i] = ranks[i + 1];
    if (best > 0) ranks[best - 1] = rank_of(symbols[best - 1], symbols[best]);
    if (best + 1 < count) ranks[best] = rank_of(symbols[best], symbols[best + 1]);
  }
  return count;
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
    // Stale if one of the two was merged meanwhile; the id of a removed node is -1.
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

size_t BpeModel::covered_bytes(int32_t id, std::string_view rest) const {
  const auto is_unknown = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)] < 0; };
  if (id != unk_ || rest.empty() || !is_unknown(rest[0])) return bytes_of(id).size();
  if (!fuse_unk_) return 1;
  return static_cast<size_t>(std::find_if_not(rest.begin(), rest.end(), is_unknown) - rest.begin());
}

std::string BpeModel::decode(std::span<const int32_t> ids,
                             const std::unordered_map<int32_t, std::string>& others) const {
  std::string text;
  for (const int32_t id : ids) {
    const auto other = others.find(id);
    text.append(other != others.end() ? std::string_view(other->second) : bytes_of(id));
  }
  return text;
}

std::string_view BpeModel::bytes_of(int32_t id) const {
  return id >= 0 && id < id_bound() ? std::string_view(token_bytes_[id]) : std::string_view();
}

std::optional<int32_t> BpeModel::id_of(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace teratron
