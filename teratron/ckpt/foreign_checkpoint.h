// A checkpoint in files of another format, loaded like one of ours.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"

namespace teratron {

class ForeignCheckpoint {
 public:
  virtual ~ForeignCheckpoint() = default;
  /// The settings and tensors that a checkpoint of this would have.
  virtual const CheckpointInfo& info() const = 0;
  /// Fills a part of a tensor, without its padding; dtype and shape must be those of info(). Thread-safe.
  virtual void read(const LocalTensor& target) const = 0;
};

/// load_tensors() from another format. Collective.
void load_tensors(const ForeignCheckpoint& checkpoint, const std::vector<LocalTensor>& tensors,
                  const std::vector<std::string>& ignored, HostGroup& group);

}  // namespace teratron
