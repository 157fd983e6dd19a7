// A dataset whose samples, once read, make up any number of epochs.
#pragma once

#include <memory>
#include <optional>

#include "teratron/data/dataset.h"

namespace teratron {

class ResizableDataset : public Dataset {
 public:
  /// So many samples of the same data, which both share; nullopt: one epoch.
  virtual std::shared_ptr<const Dataset> resized(std::optional<int64_t> samples) const = 0;
};

}  // namespace teratron
