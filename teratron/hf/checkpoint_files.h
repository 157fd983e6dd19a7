// A folder of safetensors as Hugging Face lays it out: model.safetensors, or model.safetensors.index.json and
// the files it names. The index may name only plain files inside the folder; every tensor lies in exactly one
// file and where the index says; otherwise UserError(checkpoint) with all problems.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "teratron/ckpt/safetensors.h"

namespace teratron {

class HfFiles {
 public:
  explicit HfFiles(const std::filesystem::path& directory);

  /// All tensors, by name.
  const std::map<std::string, const SafetensorsEntry*>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// A whole tensor's bytes.
  std::vector<char> read(const std::string& name) const;

 private:
  void add_file(const std::filesystem::path& path);
  void read_index(const std::filesystem::path& directory);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsEntry*> tensors_;
  std::map<std::string, const SafetensorsFile*> file_of_;
};

/// Writes such a folder: files of at most `max_bytes` of data (a larger tensor has one of its own). `produce`
/// gives the bytes of each tensor, in the order declared.
void write_hf_files(const std::filesystem::path& directory,
                    const std::vector<SafetensorsWriter::Tensor>& tensors, int64_t max_bytes,
                    const std::function<std::vector<char>(size_t)>& produce);

}  // namespace teratron
