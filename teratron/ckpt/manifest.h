// manifest.json: what a checkpoint holds and where. Its hash covers the whole content, its shard list the
// sizes and headers of the files, its block hashes every byte of the tensors.
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

/// A part of a global tensor: a flat range of a cut, or a list of runs where that was trimmed because another
/// rank had written some of it.
struct Region {
  Shard cut;
  int64_t flat_begin = 0;
  int64_t flat_end = 0;
  std::vector<Run> trimmed;  // with `local` counting stored elements; empty: not trimmed
  bool operator==(const Region& other) const;
};

/// The runs, `local` counting from the start of the flat range (trimmed: from the first stored element).
std::vector<Run> runs_of(const Region& region);

/// One tensor of a shard file: the region's elements in global order, without padding.
struct ManifestPart {
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
  std::vector<ManifestPart> parts;
};

struct ManifestShard {
  std::string file;
  int64_t bytes = 0;
  int64_t header_bytes = 0;
  uint64_t header_hash = 0;
};

struct Manifest {
  static constexpr int major_version = 1;
  static constexpr int64_t block_bytes = 4 << 20;  // one hash each; what a reader must hold at least

  std::string run_id;
  int64_t iteration = 0;
  int64_t sequence = 0;  // grows with every commit into the directory
  std::string config;    // JSON objects
  std::string state;
  std::vector<ManifestShard> shards;
  std::map<std::string, ManifestTensor> tensors;
};

inline int64_t block_count(int64_t bytes) {
  return (bytes + Manifest::block_bytes - 1) / Manifest::block_bytes;
}

std::string to_text(const Manifest& manifest);

/// What one rank wrote, on its way to rank 0: its shard file and the parts in it, by tensor name.
struct ManifestFragment {
  ManifestShard shard;
  std::map<std::string, std::vector<ManifestPart>> parts;
};
std::string to_text(const ManifestFragment& fragment);
/// Appends it; the tensors must be in the manifest already, with their shapes.
void add_fragment(Manifest& manifest, const std::string& text);

/// Parses and checks everything that can be checked without the shards. DamagedCheckpoint where it is broken,
/// UserError(checkpoint) where it is of a newer format.
Manifest parse_manifest(const std::string& text, const std::string& where);

/// Reads DIR/manifest.json and compares the sizes of the shards with it; all problems in one
/// DamagedCheckpoint.
Manifest read_manifest(const std::filesystem::path& checkpoint);

}  // namespace teratron
