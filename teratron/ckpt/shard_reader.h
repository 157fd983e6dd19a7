// Reads blocks of tensors from the shard files of a checkpoint and verifies their hashes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/ckpt/manifest.h"

namespace teratron {

/// The index ranges of a chunk, with `local` counting its stored elements.
std::vector<IndexRange> stored_ranges(const ManifestChunk& chunk);

/// Some bytes of a shard.
struct ShardBytes {
  std::string file;
  int64_t offset = 0;
  int64_t bytes = 0;
  auto operator<=>(const ShardBytes&) const = default;
};

/// Shards that this process reads in another way than as files.
class RemoteShards {
 public:
  virtual ~RemoteShards() = default;
  virtual bool holds(const std::string& file) const = 0;
  /// `out` has room for them.
  virtual void read(const ShardBytes& where, void* out) const = 0;
};

/// Not thread-safe. Damage is collected in problems(), to be reported together.
class ShardReader {
 public:
  /// `remote`, which must outlive it, goes before files.
  ShardReader(std::filesystem::path checkpoint, const Manifest& manifest,
              const RemoteShards* remote = nullptr);

  /// Reads a block of a chunk of tensor `name` to `out`, which has room for block_size() bytes. False, with a
  /// problem recorded, if it is corrupt.
  bool read_block(const std::string& name, const ManifestChunk& chunk, int64_t block, void* out);
  /// At most Manifest::block_bytes.
  static int64_t block_size(const ManifestChunk& chunk, int64_t block);
  /// Where a block is.
  ShardBytes place_of(const ManifestChunk& chunk, int64_t block) const;

  const std::filesystem::path& path() const { return checkpoint_; }
  std::vector<Problem>& problems() { return problems_; }
  int64_t bytes_read() const { return bytes_read_; }

 private:
  const File* open(int64_t shard);
  bool check_header(const File& file, const ManifestShard& shard);
  /// False, with a problem recorded, if the shard cannot be read.
  bool read_bytes(const ManifestChunk& chunk, const ShardBytes& where, void* out);

  std::filesystem::path checkpoint_;
  const Manifest& manifest_;
  const RemoteShards* remote_;
  std::map<int64_t, File> open_;
  std::set<int64_t> invalid_;
  std::vector<Problem> problems_;
  int64_t bytes_read_ = 0;
};

}  // namespace teratron
