// Which rank writes what. A rank is responsible for each tensor, by a hash of its name: the ranks that hold
// parts of it tell it these, and it answers with the ranks that hold the same part. Ranks that hold the same
// parts divide them without further messages. What fails on one rank meanwhile is thrown on all. Fault
// points: ckpt.name_tensors, ckpt.plan, at every step between messages.
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
  std::map<std::string, TensorInfo> tensors;  // of this rank
  std::vector<SaveItem> items;                // of this rank, by name
};

/// Which of `tensors` this rank writes, at least in part.
std::vector<bool> written_tensors(const SavePlan& plan, size_t tensors);

/// The end of the flat range, with -1 resolved.
int64_t flat_end_of(const LocalTensor& tensor);

/// Collective. The tensors that any rank has, on every rank. Ranks must agree on the dtype and shape of a
/// name.
std::map<std::string, TensorInfo> tensors_of_all_ranks(const std::map<std::string, TensorInfo>& mine,
                                                       HostGroup& group);

/// The rank that is responsible for a tensor.
int64_t planner_of(const std::string& name, int64_t ranks);

/// Collective. Parts that the same ranks hold are divided among them, the largest first, each to the rank
/// with the least so far; where parts overlap without being equal, later ones are trimmed. Asserts that every
/// element is held by some rank.
SavePlan plan_save(const std::vector<LocalTensor>& tensors, HostGroup& group);

}  // namespace teratron
