// manifest.json: the metadata of a checkpoint. Its hash covers its whole content, its shard list the sizes
// and headers of the shard files, its block hashes every byte of the tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/base/shard.h"
#include "teratron/ckpt/index_ranges.h"

namespace teratron {

/// A part of a global tensor: a flat range of a sharding or, where another rank had written some of that, the
/// list of index ranges left.
struct Region {
  Shard sharding;
  int64_t flat_begin = 0;
  int64_t flat_end = 0;
  std::vector<IndexRange> trimmed;  // `local` counts stored elements; empty: not trimmed
};

/// `local` counts from the start of the flat range (trimmed: from the first stored element).
std::vector<IndexRange> index_ranges(const Region& region);

/// One tensor of a shard file: the region's elements in global order, without padding.
struct ManifestChunk {
  int64_t shard = 0;        // index in Manifest::shards
  std::string stored_name;  // in the shard
  int64_t offset = 0;       // in the file
  int64_t bytes = 0;
  Region region;
  std::vector<uint64_t> hashes;  // one per block_bytes of it
};

struct ManifestTensor {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  std::vector<ManifestChunk> chunks;
};

struct ManifestShard {
  std::string file;
  int64_t bytes = 0;
  int64_t header_bytes = 0;
  uint64_t header_hash = 0;
};

struct Manifest {
  static constexpr int major_version = 1;
  static constexpr int64_t block_bytes = 4 << 20;  // one hash each

  std::string run_id;
  int64_t iteration = 0;
  int64_t sequence = 0;  // grows with every commit into the directory
  int64_t ranks = 0;     // that wrote it, each some shards
  std::string config;    // JSON objects
  std::string state;
  std::vector<ManifestShard> shards;
  std::map<std::string, ManifestTensor> tensors;
};

inline int64_t block_count(int64_t bytes) {
  return (bytes + Manifest::block_bytes - 1) / Manifest::block_bytes;
}

std::string to_text(const Manifest& manifest);

/// What one rank wrote, to send to rank 0: its shard files and the chunks in them, by tensor name.
/// ManifestChunk::shard counts the shards of the fragment.
struct ManifestFragment {
  std::vector<ManifestShard> shards;
  std::map<std::string, std::vector<ManifestChunk>> chunks;
};
std::string to_text(const ManifestFragment& fragment);
/// The size of its shard files.
int64_t fragment_bytes(const std::string& text);
/// The tensors must be in the manifest already, with their shapes.
void add_fragment(Manifest& manifest, const std::string& text);

/// Parses and checks everything that does not need the shards. CorruptCheckpoint if it is invalid,
/// UserError(checkpoint) if it has a newer format.
Manifest parse_manifest(const std::string& text, const std::string& where);

/// Reads DIR/manifest.json and compares the sizes of the shard files with it; CorruptCheckpoint with all
/// problems.
Manifest read_manifest(const std::filesystem::path& checkpoint);

struct CheckpointInfo;  // checkpoint.h
CheckpointInfo describe_checkpoint(const std::filesystem::path& path, const Manifest& manifest);

}  // namespace teratron
