// Writes one rank's part of a checkpoint: several safetensors files at once, since neither one thread nor one
// file reaches the rate of the disk. Every block is checked and hashed, every file is synced.
#pragma once

#include <filesystem>
#include <string>

#include "teratron/ckpt/save_plan.h"

namespace teratron {

/// Where a rank writes its shards.
struct ShardTarget {
  std::filesystem::path partial;
  std::string run_id;
  int64_t rank = 0;
};

/// Writes shard-RRRRR.safetensors, shard-RRRRR-1.safetensors, ..., each by its own thread; returns what
/// the manifest says of them. The first error of a file ends the others and is thrown. Fault points:
/// ckpt.shard_created, ckpt.shard_block (each), ckpt.before_shard_sync, ckpt.shard_done, for every file.
ManifestFragment write_shards(const SaveRequest& request, const SavePlan& plan, const ShardTarget& target);

}  // namespace teratron
