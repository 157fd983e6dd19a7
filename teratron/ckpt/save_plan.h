// Which rank writes what: the ranks exchange the parts that they hold and derive the same plan from them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/manifest.h"

namespace teratron {

struct SaveItem {
  std::string name;
  size_t source = 0;               // index in this rank's tensors
  Region region;                   // as the manifest lists it
  std::vector<IndexRange> ranges;  // `local` counts from LocalTensor::data
};

struct SavePlan {
  std::map<std::string, TensorInfo> tensors;  // of all ranks
  std::vector<SaveItem> items;                // of this rank, by name
};

/// Which of `tensors` this rank writes, at least in part.
std::vector<bool> written_tensors(const SavePlan& plan, size_t tensors);

/// The end of the flat range, with -1 resolved.
int64_t flat_end_of(const LocalTensor& tensor);

/// Collective. Of the ranks that hold the same part, the one with the least to write so far writes it; where
/// parts overlap without being equal, later ones are trimmed. Asserts that every element is held by some
/// rank.
SavePlan plan_save(const std::vector<LocalTensor>& tensors, HostGroup& group);

}  // namespace teratron
