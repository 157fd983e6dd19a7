#include "teratron/tokenizer/word_cache.h"

#include <algorithm>

#include <xxhash.h>

namespace teratron {

KnownWords::KnownWords(const BpeModel& model) {
  const size_t slots = std::bit_ceil(std::max<size_t>(model.whole_words().size() * 2, 16));
  slots_.resize(slots);
  mask_ = slots - 1;
  for (const auto& [bytes, id] : model.whole_words()) {
    if (bytes.size() > ShortWord::kMaxBytes) continue;
    const ShortWord word = ShortWord::load(bytes.data(), bytes.size(), false);
    size_t slot = word.hash() & mask_;
    while (slots_[slot].id >= 0) slot = (slot + 1) & mask_;
    slots_[slot] = {word, id};
  }
}

WordCache::WordCache(const BpeModel& model, const KnownWords& known)
    : model_(model), known_(known), entries_(kSets * kWays) {}

void WordCache::clear() {
  std::fill(entries_.begin(), entries_.end(), Entry{});
  std::fill(long_entries_.begin(), long_entries_.end(), LongEntry{});
  pool_.clear();
  text_.clear();
}

void WordCache::encode_miss(const ShortWord& key, uint64_t hash, std::string_view word,
                            std::vector<int32_t>& ids) {
  const size_t before = ids.size();
  if (const int32_t id = known_.find(key); id >= 0) {
    ids.push_back(id);
  } else {
    model_.encode_word(word, ids);
  }
  const size_t count = ids.size() - before;
  if (count == 0) return;
  if (pool_.size() > kPoolLimit) clear();
  Entry* const set = &entries_[(hash & kSetMask) * kWays];
  size_t way = 0;
  while (way < kWays && set[way].count > 0) ++way;
  Entry& entry = set[way < kWays ? way : next_way_++ % kWays];
  entry.word = key;
  entry.count = static_cast<uint32_t>(count);
  if (count <= kInline) {
    std::copy_n(ids.begin() + before, count, entry.ids.begin());
  } else {
    entry.ids[0] = static_cast<int32_t>(pool_.size());
    pool_.insert(pool_.end(), ids.begin() + before, ids.end());
  }
}

void WordCache::encode_long(std::string_view word, std::vector<int32_t>& ids) {
  if (word.size() > kLongestCached) return model_.encode_word(word, ids);
  if (long_entries_.empty()) long_entries_.resize(kLongSets);
  const uint64_t hash = XXH3_64bits(word.data(), word.size());
  LongEntry& entry = long_entries_[hash & (kLongSets - 1)];
  if (entry.count > 0 && entry.hash == hash && entry.bytes == word.size() &&
      std::memcmp(text_.data() + entry.text, word.data(), word.size()) == 0) {
    ids.insert(ids.end(), pool_.begin() + entry.ids, pool_.begin() + entry.ids + entry.count);
    return;
  }
  const size_t before = ids.size();
  model_.encode_word(word, ids);
  if (ids.size() == before) return;
  if (pool_.size() > kPoolLimit || text_.size() > 4 * kPoolLimit) clear();
  entry = {hash, static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(word.size()),
           static_cast<uint32_t>(pool_.size()), static_cast<uint32_t>(ids.size() - before)};
  text_.append(word);
  pool_.insert(pool_.end(), ids.begin() + before, ids.end());
}

std::unique_ptr<WordCache> WordCachePool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<WordCache> cache = std::move(free_.back());
      free_.pop_back();
      return cache;
    }
  }
  return std::make_unique<WordCache>(model_, known_);
}

void WordCachePool::put(std::unique_ptr<WordCache> cache) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(cache));
}

}  // namespace teratron
