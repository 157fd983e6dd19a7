#include "teratron/tokenizer/bpe/word_cache.h"

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
    : model_(model), known_(known), sets_(kSets) {}

void WordCache::clear() {
  std::fill(sets_.begin(), sets_.end(), Set{});
  std::fill(long_entries_.begin(), long_entries_.end(), LongEntry{});
  pool_.clear();
  text_.clear();
}

/// A bit for the way that has the word. Branch-free: the way is unpredictable.
inline uint32_t WordCache::hits(const Set& set, const ShortWord& key) {
  uint32_t hits = 0;
#pragma GCC unroll 4
  for (size_t way = 0; way < kWays; ++way) {
    const uint64_t differs = (set.words[way].low ^ key.low) | (set.words[way].high ^ key.high);
    hits |= static_cast<uint32_t>(differs == 0) << way;
  }
  return hits;
}

/// Writes up to kMaxBytes ids to `out` and returns their number.
inline size_t WordCache::encode_short(const ShortWord& key, uint64_t hash, const char* word, int32_t* out) {
  const Set& set = sets_[hash & kSetMask];
  const uint32_t found_ways = hits(set, key);
  if (found_ways == 0) return encode_miss(key, hash, word, out);
  const Ids& found = set.ids[static_cast<size_t>(std::countr_zero(found_ways))];
  if (found.count > kInline) {
    std::copy_n(pool_.data() + found.ids[0], found.count, out);
  } else {
    std::memcpy(out, found.ids.data(), sizeof(found.ids));
  }
  return found.count;
}

size_t WordCache::encode_miss(const ShortWord& key, uint64_t hash, const char* word, int32_t* out) {
  size_t count = 1;
  if (const int32_t id = known_.find(key, hash); id >= 0) {
    *out = id;
  } else {
    count = model_.encode_short({word, key.bytes()}, out);
  }
  if (count == 0) return 0;
  if (pool_.size() > kPoolLimit) clear();
  Set& set = sets_[hash & kSetMask];
  size_t way = 0;
  while (way < kWays && set.words[way].bytes() > 0) ++way;
  if (way == kWays) way = next_way_++ % kWays;
  set.words[way] = key;
  Ids& entry = set.ids[way];
  entry.count = static_cast<uint32_t>(count);
  if (count <= kInline) {
    std::copy_n(out, count, entry.ids.begin());
  } else {
    entry.ids[0] = static_cast<int32_t>(pool_.size());
    pool_.insert(pool_.end(), out, out + count);
  }
  return count;
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

/// Prefetches the cache sets of the next words while the previous ones are encoded.
class WordCache::Batch {
 public:
  Batch(WordCache& cache, std::vector<int32_t>& ids) : cache_(cache), ids_(ids) {}
  ~Batch() = default;
  Batch(const Batch&) = delete;

  /// `word` must stay valid until flush(), which must be called after the last word. `readable`: readable
  /// bytes from `word`.
  void add(const char* word, size_t bytes, size_t readable) {
    if (bytes > ShortWord::kMaxBytes) {
      flush();
      return cache_.encode_long({word, bytes}, ids_);
    }
    Pending& pending = pending_[count_++];
    pending.word = word;
    pending.key = ShortWord::load(word, bytes, readable >= 16);
    pending.hash = pending.key.hash();
    const Set* const set = &cache_.sets_[pending.hash & kSetMask];
    __builtin_prefetch(&set->words);
    __builtin_prefetch(&set->ids);
    cache_.known_.prefetch(pending.hash);
    if (count_ == kSize) flush();
  }

  void flush() {
    int32_t* out = out_.data();
    for (size_t i = 0; i < count_; ++i) {
      const Pending& pending = pending_[i];
      out += cache_.encode_short(pending.key, pending.hash, pending.word, out);
    }
    ids_.insert(ids_.end(), out_.data(), out);
    count_ = 0;
  }

 private:
  static constexpr size_t kSize = 32;
  struct Pending {
    const char* word;
    ShortWord key;
    uint64_t hash;
  };
  WordCache& cache_;
  std::vector<int32_t>& ids_;
  std::array<Pending, kSize> pending_;
  std::array<int32_t, kSize * ShortWord::kMaxBytes + 1> out_;  // a word has at most one id per byte
  size_t count_ = 0;
};

void WordCache::encode(std::string_view word, std::vector<int32_t>& ids) {
  Batch batch(*this, ids);
  batch.add(word.data(), word.size(), word.size());
  batch.flush();
}

void WordCache::encode_words(SplitPattern pattern, std::string_view text, std::vector<int32_t>& ids) {
  const char* const end = text.data() + text.size();
  Batch batch(*this, ids);
  pre_tokenizer_.split(pattern, text, [&](const char* word, size_t bytes) {
    batch.add(word, bytes, static_cast<size_t>(end - word));
  });
  batch.flush();
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
