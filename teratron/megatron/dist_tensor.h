// Tensors of a checkpoint in format `torch_dist`.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "teratron/megatron/tensor_source.h"
#include "teratron/pickle/dist_metadata.h"

namespace teratron {

/// The .distcp files of a folder, opened as needed. Thread-safe.
class DistFiles {
 public:
  explicit DistFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}
  /// The bytes of an item. UserError(checkpoint) if the file is missing or shorter.
  ByteSourcePtr bytes_of(const DistItem& item) const;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, ByteSourcePtr> open_;
};

/// Joined from its chunks. Reading throws UserError(checkpoint) if a chunk is not what the metadata says.
TensorSourcePtr tensor_of_chunks(std::shared_ptr<const DistFiles> files, const std::string& name,
                                 const DistTensor& tensor);

}  // namespace teratron
