// Word -> ids, so that a frequent word is merged once. Bounded: a full set of slots gives up its oldest word,
// and a cache whose pools are full starts afresh. One thread at a time; WordCachePool lends caches to calls.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/bpe_model.h"

namespace teratron {

/// A word of at most 15 bytes in two registers; the length is part of it.
struct ShortWord {
  static constexpr size_t kMaxBytes = 15;
  uint64_t low, high;

  /// `readable`: at least 16 bytes may be read at `word`.
  static ShortWord load(const char* word, size_t bytes, bool readable) {
    static_assert(std::endian::native == std::endian::little);
    uint64_t parts[2] = {0, 0};
    if (readable) {
      std::memcpy(parts, word, 16);
      const uint64_t keep = ~uint64_t{0} >> ((64 - 8 * (bytes & 7)) & 63);
      if (bytes < 8) {
        parts[0] &= bytes == 0 ? 0 : keep;
        parts[1] = 0;
      } else {
        parts[1] &= bytes == 8 ? 0 : keep;
      }
    } else {
      std::memcpy(parts, word, bytes);
    }
    return {parts[0], parts[1] | static_cast<uint64_t>(bytes) << 56};
  }
  uint64_t hash() const {
    const uint64_t mixed = (low ^ std::rotl(high * 0x9e3779b97f4a7c15u, 31)) * 0xd6e8feb86659fd93u;
    return mixed ^ mixed >> 32;
  }
  size_t bytes() const { return high >> 56; }
  bool operator==(const ShortWord&) const = default;
};

/// The tokens of a vocabulary that are whole words of at most 15 bytes: shared, never changes.
class KnownWords {
 public:
  explicit KnownWords(const BpeModel& model);
  /// Id, or -1.
  int32_t find(const ShortWord& word) const {
    for (size_t slot = word.hash() & mask_;; slot = (slot + 1) & mask_) {
      if (slots_[slot].id < 0 || slots_[slot].word == word) return slots_[slot].id;
    }
  }

 private:
  struct Slot {
    ShortWord word{};
    int32_t id = -1;
  };
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

class WordCache {
 public:
  WordCache(const BpeModel& model, const KnownWords& known);

  /// Appends the ids of a word. `readable`: bytes that may be read from `word` on (at least `bytes`).
  void encode(const char* word, size_t bytes, size_t readable, std::vector<int32_t>& ids) {
    if (bytes > ShortWord::kMaxBytes) return encode_long({word, bytes}, ids);
    const ShortWord key = ShortWord::load(word, bytes, readable >= 16);
    encode_short(key, key.hash(), word, ids);
  }

 private:
  static constexpr size_t kWays = 4;
  static constexpr size_t kSets = 8192;
  static constexpr size_t kSetMask = kSets - 1;
  static constexpr size_t kLongSets = 16384;
  static constexpr uint32_t kInline = 3;
  static constexpr size_t kPoolLimit = size_t{1} << 20;
  static constexpr size_t kLongestCached = 128;

  struct Entry {
    ShortWord word{};
    uint32_t count = 0;
    std::array<int32_t, kInline> ids{};  // or the place in pool_ when there are more
  };
  struct LongEntry {
    uint64_t hash = 0;
    uint32_t text = 0, bytes = 0, ids = 0, count = 0;
  };

  friend class WordBatch;

  void prefetch(uint64_t hash) const {
    const auto* const set = reinterpret_cast<const char*>(&entries_[(hash & kSetMask) * kWays]);
    __builtin_prefetch(set);
    __builtin_prefetch(set + 64);
  }
  void encode_short(const ShortWord& key, uint64_t hash, const char* word, std::vector<int32_t>& ids) {
    const Entry* const set = &entries_[(hash & kSetMask) * kWays];
    for (size_t way = 0; way < kWays; ++way) {
      const Entry& entry = set[way];
      if (!(entry.word == key) || entry.count == 0) continue;
      if (entry.count > kInline) {
        const int32_t* const first = pool_.data() + entry.ids[0];
        ids.insert(ids.end(), first, first + entry.count);
      } else {
        for (uint32_t i = 0; i < entry.count; ++i) ids.push_back(entry.ids[i]);
      }
      return;
    }
    encode_miss(key, hash, {word, key.bytes()}, ids);
  }
  void encode_miss(const ShortWord& key, uint64_t hash, std::string_view word, std::vector<int32_t>& ids);
  void encode_long(std::string_view word, std::vector<int32_t>& ids);
  void clear();

  const BpeModel& model_;
  const KnownWords& known_;
  std::vector<Entry> entries_;
  std::vector<LongEntry> long_entries_;
  std::vector<int32_t> pool_;
  std::string text_;  // of long words
  uint32_t next_way_ = 0;
};

/// Words on their way into a cache: the slots of a word are fetched from memory while the words before it are encoded.
/// Call flush() after the last one.
class WordBatch {
 public:
  WordBatch(WordCache& cache, std::vector<int32_t>& ids) : cache_(cache), ids_(ids) {}

  /// Like WordCache::encode; the bytes must stay until flush().
  void add(const char* word, size_t bytes, size_t readable) {
    Pending& pending = pending_[count_++];
    pending.word = word;
    pending.bytes = bytes;
    if (bytes <= ShortWord::kMaxBytes) {
      pending.key = ShortWord::load(word, bytes, readable >= 16);
      pending.hash = pending.key.hash();
      cache_.prefetch(pending.hash);
    }
    if (count_ == kSize) flush();
  }

  void flush() {
    for (size_t i = 0; i < count_; ++i) {
      const Pending& pending = pending_[i];
      if (pending.bytes <= ShortWord::kMaxBytes) {
        cache_.encode_short(pending.key, pending.hash, pending.word, ids_);
      } else {
        cache_.encode_long({pending.word, pending.bytes}, ids_);
      }
    }
    count_ = 0;
  }

 private:
  static constexpr size_t kSize = 32;
  struct Pending {
    const char* word;
    size_t bytes;
    ShortWord key;
    uint64_t hash;
  };
  WordCache& cache_;
  std::vector<int32_t>& ids_;
  std::array<Pending, kSize> pending_;
  size_t count_ = 0;
};

/// Lends each call a cache of its own: thread-safe, one lock per call rather than per word.
class WordCachePool {
 public:
  explicit WordCachePool(const BpeModel& model) : model_(model), known_(model) {}

  class Lease {
   public:
    explicit Lease(WordCachePool& pool) : pool_(pool), cache_(pool.take()) {}
    ~Lease() { pool_.put(std::move(cache_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    WordCache& operator*() const { return *cache_; }

   private:
    WordCachePool& pool_;
    std::unique_ptr<WordCache> cache_;
  };

 private:
  std::unique_ptr<WordCache> take();
  void put(std::unique_ptr<WordCache> cache);

  const BpeModel& model_;
  const KnownWords known_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> free_;
};

}  // namespace teratron
