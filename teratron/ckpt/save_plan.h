// Who writes what: the ranks tell each other which parts they hold, and all derive the same plan from that.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/manifest.h"

namespace teratron {

struct PlannedPart {
  std::string name;
  size_t source = 0;      // index in this rank's tensors
  Region region;          // as the manifest lists it
  std::vector<Run> runs;  // as the source holds it: `local` counts from LocalTensor::data
};

struct SavePlan {
  std::map<std::string, TensorInfo> tensors;  // of all ranks
  std::vector<PlannedPart> mine;              // what this rank writes, by name
};

/// The end of the flat range, with -1 resolved.
int64_t flat_end_of(const LocalTensor& tensor);

/// Collective. Parts that several ranks hold go to the one that has least to write so far; where parts
/// overlap without being equal, the later ones are trimmed. Elements that no rank holds are a bug of the
/// caller.
SavePlan plan_save(const std::vector<LocalTensor>& tensors, Peers& peers);

}  // namespace teratron
