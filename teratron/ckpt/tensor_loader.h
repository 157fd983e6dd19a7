// Fills local tensors from the chunks of a manifest.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/ckpt/shard_reader.h"

namespace teratron {

/// The index ranges of each chunk of a tensor. CorruptCheckpoint unless they fit the bytes stored.
std::vector<std::vector<IndexRange>> ranges_of_chunks(const std::string& name, const ManifestTensor& tensor);

/// Loads one local tensor after the other; consecutive ones of the same name share the list of chunks.
class TensorLoader {
 public:
  /// Both must outlive it.
  TensorLoader(ShardReader& reader, const Manifest& manifest)
      : reader_(reader), manifest_(manifest), buffer_(std::make_unique<char[]>(Manifest::block_bytes)) {}

  /// Its padding is set to zero. Damage is collected in the reader.
  void load(const LocalTensor& target);
  /// Adds the blocks that load() will read of shards that `remote` holds.
  void list_blocks(const LocalTensor& target, const RemoteShards& remote, std::set<ShardBytes>& blocks);

 private:
  void find_ranges(const std::string& name, const ManifestTensor& tensor);

  ShardReader& reader_;
  const Manifest& manifest_;
  std::unique_ptr<char[]> buffer_;
  std::string current_;
  std::vector<std::vector<IndexRange>> chunk_ranges_;
};

/// Zeroes the elements of a local tensor outside `ranges`: uninitialized padding must not enter arithmetic.
void clear_padding(const LocalTensor& target, const std::vector<IndexRange>& ranges);

}  // namespace teratron
