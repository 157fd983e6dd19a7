// A checkpoint of any format, read in parts: what loads, converts or exports it does not depend on its files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"

namespace teratron {

class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  /// Its settings and tensors; of another format, those that a checkpoint of ours would have.
  virtual const CheckpointInfo& info() const = 0;
  /// Fills a part of a tensor, without its padding; dtype and shape must be those of info(). Thread-safe,
  /// except for CheckpointReader.
  virtual void read(const LocalTensor& target) const = 0;
  /// False if each part costs as much as the whole tensor.
  virtual bool reads_in_parts(const std::string&) const { return true; }
};

class RemoteShards;
class SharedManifest;
struct Manifest;

/// One of ours. Not thread-safe.
class CheckpointReader final : public CheckpointSource {
 public:
  /// By its iter_* directory, for tools: reads the whole manifest and looks at all shards. Not collective.
  explicit CheckpointReader(const std::filesystem::path& path);
  /// With its manifest, where `remote` may hold shards (nodes/peer_shards.h). Not collective.
  CheckpointReader(const std::filesystem::path& path, Manifest manifest, const RemoteShards& remote);
  /// For reads of these parts alone, whose places the ranks ask each other for. What only other nodes see of
  /// them is held in memory. Collective; read() is not.
  CheckpointReader(const SharedManifest& shared, const std::vector<LocalTensor>& parts, HostGroup& group);
  ~CheckpointReader() override;
  const CheckpointInfo& info() const override;
  /// Errors like load_tensors; the padding is set to zero.
  void read(const LocalTensor& target) const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// load_tensors() from another format. Collective.
void load_tensors(const CheckpointSource& checkpoint, const std::vector<LocalTensor>& tensors,
                  const std::vector<std::string>& ignored, HostGroup& group);

}  // namespace teratron
