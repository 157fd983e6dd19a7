// Reads blocks of tensors out of a checkpoint's shards, each verified against its hash before it is used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/ckpt/manifest.h"

namespace teratron {

/// The runs of a part with `local` counting its stored elements.
std::vector<Run> stored_runs(const ManifestPart& part);

/// Not for several threads. Damage is collected in problems(), so that all of it can be told at once.
class ShardReader {
 public:
  ShardReader(std::filesystem::path checkpoint, const Manifest& manifest);

  /// Reads block `block` of a part of tensor `name` to `out` (at most Manifest::block_bytes, its size by
  /// block_size()). False, with a problem recorded, where it is damaged.
  bool read_block(const std::string& name, const ManifestPart& part, int64_t block, void* out);
  static int64_t block_size(const ManifestPart& part, int64_t block);

  const std::filesystem::path& path() const { return checkpoint_; }
  std::vector<Problem>& problems() { return problems_; }
  int64_t bytes_read() const { return bytes_read_; }
  double hash_seconds() const { return hash_seconds_; }

 private:
  struct OpenShard {
    File file;
    bool sound;
  };
  OpenShard& open(int64_t shard);
  bool check_header(const File& file, const ManifestShard& shard);

  std::filesystem::path checkpoint_;
  const Manifest& manifest_;
  std::map<int64_t, OpenShard> open_;
  std::vector<Problem> problems_;
  int64_t bytes_read_ = 0;
  double hash_seconds_ = 0;
};

}  // namespace teratron
