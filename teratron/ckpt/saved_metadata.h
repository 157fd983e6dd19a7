// The manifest of a save, while no rank holds all of it: every rank has a fragment for what it wrote. Tensors
// are divided among the files of the manifest by a hash of their names, and the ranks that write these files
// receive the chunks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/ckpt/save_plan.h"
#include "teratron/ckpt/write_shards.h"
#include "teratron/comm/ranks/rank_exchange.h"

namespace teratron {

class SavedMetadata {
 public:
  /// `written`: this rank's shards and chunks. Tensors without elements are listed although none is written.
  SavedMetadata(ManifestFragment written, const SavePlan& plan);

  /// Sizes to add up over the ranks.
  struct Sizes {
    int64_t shards = 0;    // bytes
    int64_t metadata = 0;  // bytes of JSON
  };
  Sizes sizes() const;

  /// Collective: divides the chunks among `files` files of the manifest. What fails on one rank is thrown on
  /// all. Fault point: ckpt.divide, before and after the messages.
  void divide(int64_t files, HostGroup& group);

  /// Writes the files of this rank. Returns what rank 0 lists of them; "" if there are none. Fault points:
  /// ckpt.before_manifest_file, ckpt.manifest_file_written, for every file.
  std::string write_files(const ShardTarget& target) const;
  /// Rank 0: adds what write_files() returned, by rank, to the index.
  static void add_files(const std::vector<std::string>& lists, Manifest& index);

  /// Rank 0, of a manifest in one file: adds shards and chunks.
  void add_to(Manifest& manifest);

 private:
  /// For the ranks that write the files.
  RankBytes fragments_for(int64_t files, int64_t ranks) const;

  ManifestFragment written_;
  std::map<int64_t, ManifestFragment> files_;  // that this rank writes
  int64_t metadata_bytes_ = 0;
};

/// The text of a manifest or a file of it, after checking that it can be read.
std::string checked_text(const Manifest& manifest);
std::string checked_text(const ManifestFragment& fragment);

}  // namespace teratron
