// Word -> ids, so that a frequent word is merged once. Bounded: a full set evicts its oldest word, and a
// cache with full pools is cleared. Not thread-safe; WordCachePool leases a cache to each call.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/bpe/bpe_model.h"
#include "teratron/tokenizer/bpe/pre_tokenizer.h"

namespace teratron {

/// A word of at most 15 bytes, with its length, in two registers.
struct ShortWord {
  static constexpr size_t kMaxBytes = 15;
  /// kMasks[8 + n] keeps the first n bytes, none for n < 0.
  static constexpr std::array<uint64_t, 24> kMasks = [] {
    std::array<uint64_t, 24> masks{};
    for (size_t n = 1; n < 16; ++n) masks[8 + n] = n < 8 ? (uint64_t{1} << 8 * n) - 1 : ~uint64_t{0};
    return masks;
  }();
  uint64_t low = 0, high = 0;

  /// `readable`: at least 16 bytes may be read at `word`.
  static ShortWord load(const char* word, size_t bytes, bool readable) {
    static_assert(std::endian::native == std::endian::little);
    uint64_t parts[2] = {0, 0};
    if (readable) {
      // Branch-free masking: lengths are unpredictable.
      std::memcpy(parts, word, 16);
      parts[0] &= kMasks[8 + bytes];
      parts[1] &= kMasks[bytes];
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

/// The tokens that are whole words of at most 15 bytes; immutable and shared.
class KnownWords {
 public:
  explicit KnownWords(const BpeModel& model);
  /// Id, or -1. `hash` = word.hash().
  int32_t find(const ShortWord& word, uint64_t hash) const {
    for (size_t slot = hash & mask_;; slot = (slot + 1) & mask_) {
      if (slots_[slot].id < 0 || slots_[slot].word == word) return slots_[slot].id;
    }
  }
  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }

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

  /// Appends the ids of a word.
  void encode(std::string_view word, std::vector<int32_t>& ids);
  /// Pre-tokenizes a text (valid UTF-8) and appends the ids of its words.
  void encode_words(SplitPattern pattern, std::string_view text, std::vector<int32_t>& ids);

 private:
  static constexpr size_t kWays = 4;
  static constexpr size_t kSets = 8192;
  static constexpr size_t kSetMask = kSets - 1;
  static constexpr size_t kLongSets = 16384;
  static constexpr uint32_t kInline = 3;
  static constexpr size_t kPoolLimit = size_t{1} << 20;
  static constexpr size_t kLongestCached = 128;

  struct Ids {
    uint32_t count = 0;
    std::array<int32_t, kInline> ids{};  // if more: ids[0] is the index in pool_
  };
  /// Two cache lines. An empty way has length 0.
  struct alignas(64) Set {
    std::array<ShortWord, kWays> words{};
    std::array<Ids, kWays> ids{};
  };
  struct LongEntry {
    uint64_t hash = 0;
    uint32_t text = 0, bytes = 0, ids = 0, count = 0;
  };
  class Batch;

  static uint32_t hits(const Set& set, const ShortWord& key);
  size_t encode_short(const ShortWord& key, uint64_t hash, const char* word, int32_t* out);
  size_t encode_miss(const ShortWord& key, uint64_t hash, const char* word, int32_t* out);
  void encode_long(std::string_view word, std::vector<int32_t>& ids);
  void clear();

  const BpeModel& model_;
  const KnownWords& known_;
  const PreTokenizer pre_tokenizer_;
  std::vector<Set> sets_;
  std::vector<LongEntry> long_entries_;
  std::vector<int32_t> pool_;
  std::string text_;  // of long words
  uint32_t next_way_ = 0;
};

/// Leases a cache to each call. Thread-safe, with one lock per call instead of per word.
class WordCachePool {
 public:
  explicit WordCachePool(const BpeModel& model) : model_(model), known_(model) { put(take()); }

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
