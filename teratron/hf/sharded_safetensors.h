// A folder of safetensors in Hugging Face's layout: model.safetensors, or the shards that
// model.safetensors.index.json lists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/safetensors.h"

namespace teratron {

class ShardedSafetensors {
 public:
  /// The index may name only plain files inside the folder, and every tensor must be in exactly the file that
  /// it says; otherwise UserError(checkpoint) with all problems.
  explicit ShardedSafetensors(const std::filesystem::path& directory);

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// All bytes of a tensor.
  std::vector<char> read(const std::string& name) const;

 private:
  void add_shard(const std::filesystem::path& path, const std::set<std::string>* expected,
                 std::vector<Problem>& problems);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, const SafetensorsFile*> file_of_;
};

/// Writes a folder of shards with at most `max_bytes` of data each (a larger tensor has its own). `produce`
/// returns the bytes of each tensor and is called in their order.
void write_sharded_safetensors(const std::filesystem::path& directory,
                               const std::vector<SafetensorsWriter::Tensor>& tensors, int64_t max_bytes,
                               const std::function<std::vector<char>(size_t)>& produce);

}  // namespace teratron
