// What an export writes, as it follows from the checkpoint and the request.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/shard.h"
#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/megatron/export/export.h"
#include "teratron/megatron/saved_args.h"

namespace teratron {

struct ExportPlan {
  const CheckpointSource& source;
  const MegatronModel& model;
  SavedArgs args = {};
  std::map<std::string, TensorInfo> weights = {};
  bool optimizer = false;  // Adam's state is written
  int64_t groups = 1;      // of queries
  std::vector<std::string> notices = {};

  const CheckpointInfo& info() const { return source.info(); }
  int64_t iteration() const { return args.state.value("iteration", int64_t{0}); }
  std::string folder() const;  // "release", "iter_0000050"
  /// Whether the weights are rounded, so that the optimizer has them in fp32.
  bool has_masters() const { return args.dtype != Dtype::f32; }
};

/// UserError as export_megatron().
ExportPlan make_export_plan(const CheckpointSource& source, const MegatronExport& request);

/// UserError(checkpoint) for weights that are not in `placed`; `target` has no place for them.
void check_all_placed(const ExportPlan& plan, const std::set<std::string>& placed, std::string_view target);

/// What a tensor rank has of a weight, and of its states.
Shard shard_of(const ExportPlan& plan, const std::string& name, int64_t rank);
/// Whether its rows are those of the vocabulary, which are padded.
bool is_vocabulary(const std::string& name);
/// In the result.
Dtype weight_dtype(const ExportPlan& plan, const std::string& name);

}  // namespace teratron
