// The tensors of a Hugging Face folder: model.safetensors, or what torch.save wrote into pytorch_model.bin,
// or the shards that the index beside them lists (model.safetensors.index.json,
// pytorch_model.bin.index.json). As in transformers, safetensors are taken where both are there.
//
// Files of torch.save are read as data (pickle/unpickler.h); nothing in them is ever run.
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
#include "teratron/pickle/torch_writer.h"

namespace teratron {

/// One file of named tensors.
class WeightFile {
 public:
  virtual ~WeightFile() = default;
  virtual std::map<std::string, TensorInfo> tensors() const = 0;
  /// Bytes [begin, begin + bytes) of a tensor, row-major. Thread-safe.
  virtual void read(const std::string& name, int64_t begin, int64_t bytes, void* out) const = 0;
  /// Compares all bytes with their checksums, which safetensors do not have; returns how many have one.
  virtual int64_t verify() const { return 0; }
};

class WeightFiles {
 public:
  /// The index may name only plain files inside the folder, and every tensor must be in exactly the file that
  /// it says; otherwise UserError(checkpoint) with all problems.
  explicit WeightFiles(const std::filesystem::path& directory);

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// Bytes [begin, begin + bytes) of a tensor, row-major. Thread-safe.
  void read(const std::string& name, int64_t begin, int64_t bytes, void* out) const;
  /// All bytes of a tensor.
  std::vector<char> read(const std::string& name) const;
  /// Puts equal parts of a tensor, which lie one after another in its file, in its place.
  void divide(const std::string& name, const std::vector<std::string>& parts,
              const std::vector<int64_t>& shape);
  /// Puts the tensors of `by`, which may still read them, in the place of these.
  void replace(const std::vector<std::string>& names, std::unique_ptr<WeightFile> by);
  /// Puts bf16 in place of FP8 with scales in "NAME_scale_inv" (fp8/block_scaled.h).
  void dequantize();
  /// Compares the checksums that files have; returns how many bytes were compared.
  int64_t verify() const;

 private:
  void add_shard(const std::filesystem::path& path, const std::set<std::string>* expected,
                 std::vector<Problem>& problems);

  std::vector<std::unique_ptr<WeightFile>> files_;
  std::map<std::string, TensorInfo> tensors_;
  struct Place {
    const WeightFile* file;
    std::string file_name;
    std::string tensor;                             // of the file
    int64_t begin = 0;                              // byte within it
    std::shared_ptr<const Place> scales = nullptr;  // of what is dequantized; it has `columns`
    int64_t columns = 0;
  };
  std::map<std::string, Place> place_of_;
};

/// model*.safetensors, or pytorch_model*.bin, which torch.save wrote before.
enum class WeightFormat : uint8_t { safetensors, bin };

struct WeightShards {
  int64_t max_bytes = 0;  // of data in a file; a larger tensor has its own
  WeightFormat format = WeightFormat::safetensors;
};

/// Writes a folder of shards, with an index if there are several. `write` appends the bytes of each tensor
/// and is called in their order.
void write_sharded_weights(const std::filesystem::path& directory,
                           const std::vector<SafetensorsWriter::Tensor>& tensors, const WeightShards& shards,
                           const std::function<void(size_t, const AppendBytes&)>& write);

}  // namespace teratron
