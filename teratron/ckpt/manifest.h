// manifest.json: the metadata of a checkpoint. Its hash covers its whole content, its shard list the sizes
// and headers of the shard files, its block hashes every byte of the tensors.
//
// Format 1.0 is this one file. The metadata of many ranks would make it too large for one reader. Format 2.0
// keeps in manifest.json what every rank needs: settings, state, dtypes and shapes. Shards and chunks are
// divided by tensor into files manifest-00000.json ..., whose sizes and hashes it lists. A save writes format
// 1.0 as long as its metadata fits one such file, so that earlier releases read it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/base/error.h"
#include "teratron/base/shard.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/index_ranges.h"

namespace teratron {

/// A part of a global tensor: a flat range of a sharding or the list of its index ranges: where another rank
/// had written some of that, those left. A sharding with shared rows (Shard::sharers) is always listed.
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
  int64_t file = 0;  // index in Manifest::files
};

struct ManifestShard {
  std::string file;
  int64_t bytes = 0;
  int64_t header_bytes = 0;
  uint64_t header_hash = 0;
};

/// Shards and chunks of some tensors: what one rank wrote, a file of format 2.0, or what one rank reads.
/// ManifestChunk::shard counts its own shards.
struct ManifestFragment {
  std::vector<ManifestShard> shards;
  std::map<std::string, ManifestTensor> tensors;
};

/// A file of format 2.0.
struct ManifestFile {
  std::string file;
  int64_t bytes = 0;
  uint64_t hash = 0;  // of the whole file
};

struct Manifest {
  static constexpr const char* format_name = "teratron-checkpoint";
  static constexpr int major_version = 2;
  static constexpr int64_t block_bytes = 4 << 20;  // one hash each

  std::string run_id;
  int64_t iteration = 0;
  int64_t sequence = 0;  // grows with every commit into the directory
  int64_t ranks = 0;     // that wrote it, each some shards
  int64_t bytes = 0;     // of all shards
  std::string config;    // JSON objects
  std::string state;
  std::vector<CheckpointNode> nodes;  // empty: all ranks wrote to one folder
  std::vector<ManifestFile> files;    // of format 2.0: then shards and chunks are in these
  std::vector<ManifestShard> shards;
  std::map<std::string, ManifestTensor> tensors;
};

inline int64_t block_count(int64_t bytes) {
  return (bytes + Manifest::block_bytes - 1) / Manifest::block_bytes;
}

/// Format 1.0, or 2.0 if the manifest lists files.
std::string to_text(const Manifest& manifest);
std::string to_text(const ManifestFragment& fragment);

/// Parses and checks manifest.json, as far as that needs no other file. CorruptCheckpoint if it is invalid,
/// UserError(checkpoint) if it has a newer format.
Manifest parse_manifest(const std::string& text, const std::string& where);
/// Whether the chunks of a tensor must be all of it.
enum class Chunks : uint8_t { all, some };
ManifestFragment parse_fragment(const std::string& text, const std::string& where, Chunks chunks);

/// Collects chunks of several fragments, each of their shards once.
class FragmentBuilder {
 public:
  /// `tensor` without its chunks.
  void add_tensor(const std::string& name, const ManifestTensor& tensor);
  /// The tensor has been added; ManifestChunk::shard is set.
  void add_chunk(const std::string& name, ManifestChunk chunk, const ManifestShard& shard);
  /// Everything of `other`.
  void add(const ManifestFragment& other);
  int64_t add_shard(const ManifestShard& shard);  // returns its index

  ManifestFragment take() { return std::move(fragment_); }

 private:
  ManifestFragment fragment_;
  std::map<std::string, int64_t> shards_;  // by file
};

// Reading files. Damage is CorruptCheckpoint; a file of any size is read. Fault points: ckpt.read_index,
// ckpt.read_manifest_file.

/// DIR/manifest.json alone: of format 2.0 the tensors have no chunks.
Manifest read_manifest_index(const std::filesystem::path& checkpoint);
/// One file of format 2.0, compared with the index.
ManifestFragment read_manifest_file(const std::filesystem::path& checkpoint, const Manifest& index,
                                    int64_t file);
/// The whole manifest, of any format.
Manifest read_whole_manifest(const std::filesystem::path& checkpoint);
/// Problems of shard files that are missing or have other sizes.
std::vector<Problem> size_problems(const std::filesystem::path& checkpoint,
                                   const std::vector<ManifestShard>& shards);
/// read_whole_manifest() and size_problems(): CorruptCheckpoint with all problems.
Manifest read_manifest(const std::filesystem::path& checkpoint);

CheckpointInfo describe_checkpoint(const std::filesystem::path& path, const Manifest& manifest);

}  // namespace teratron
