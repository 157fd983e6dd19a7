// Reads blocks of tensors from the shard files of a checkpoint and verifies their hashes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/ckpt/manifest.h"

namespace teratron {

/// The index ranges of a chunk, with `local` counting its stored elements.
std::vector<IndexRange> stored_ranges(const ManifestChunk& chunk);

/// Not thread-safe. Damage is collected in problems(), to be reported together.
class ShardReader {
 public:
  ShardReader(std::filesystem::path checkpoint, const Manifest& manifest);

  /// Reads a block of a chunk of tensor `name` to `out`, which has room for block_size() bytes. False, with a
  /// problem recorded, if it is corrupt.
  bool read_block(const std::string& name, const ManifestChunk& chunk, int64_t block, void* out);
  /// At most Manifest::block_bytes.
  static int64_t block_size(const ManifestChunk& chunk, int64_t block);

  const std::filesystem::path& path() const { return checkpoint_; }
  std::vector<Problem>& problems() { return problems_; }
  int64_t bytes_read() const { return bytes_read_; }

 private:
  const File* open(int64_t shard);
  bool check_header(const File& file, const ManifestShard& shard);

  std::filesystem::path checkpoint_;
  const Manifest& manifest_;
  std::map<int64_t, File> open_;
  std::set<int64_t> invalid_;
  std::vector<Problem> problems_;
  int64_t bytes_read_ = 0;
};

}  // namespace teratron
