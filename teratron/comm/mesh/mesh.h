// The ranks of a job as a grid, with a communicator per group. A Mesh is an immutable value passed down to
// its users; there are no global groups. Rank order and groups are Megatron-LM's: "tp-cp-ep-dp-pp", leftmost
// axis fastest; the expert view (etp, ep, edp, pp) covers the same ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "teratron/comm/communicator.h"
#include "teratron/comm/mesh/rank_grid.h"
#include "teratron/comm/ranks/rank_list.h"

namespace teratron {

/// A group of ranks. In a group of one rank every collective is the identity, so layers never test the size.
struct Group {
  int64_t rank = 0;
  int64_t size = 1;
  RankList ranks = {0};  // global
  std::shared_ptr<Communicator> communicator = self_communicator();
};

/// Communicators to the neighbouring pipeline stages, which form a ring (the interleaved schedule wraps
/// around). Each direction has its own two-rank communicator, sender first, so that no message waits for one
/// in another direction. Without a pipeline: groups of one rank.
struct PipelineLinks {
  Group forward_in;    // activations from the previous stage
  Group forward_out;   // to the next stage
  Group backward_in;   // gradients from the next stage
  Group backward_out;  // to the previous stage
};

class Mesh {
 public:
  /// A single rank.
  Mesh();
  /// Throws UserError(config), with the arithmetic, if the sizes do not multiply to the world size. The world
  /// must outlive the mesh.
  Mesh(const MeshOptions& options, World& world);

  int64_t rank() const;
  int64_t world_size() const;
  const RankGrid& grid() const;
  /// The ranks that share this rank's coordinates on all other axes. All axes must belong to one view: dense
  /// (tp, cp, dp, pp) or expert (etp, ep, edp, pp).
  const Group& group(AxisSet axes) const;
  /// All ranks.
  const Group& world() const;
  /// Replicas of a dense layer (dp x cp), over which gradients are averaged.
  const Group& replicas() const { return group(replica_axes); }
  /// Ranks with other samples.
  const Group& data_parallel() const { return group(Axis::dp); }
  /// Some stages of this rank's pipeline, for tensors that they share. These ranks must all call it, with the
  /// same stages in the same order as other calls.
  Group stage_group(const std::vector<int64_t>& stages) const;
  /// The `size` ranks of group(axis) that begin with one whose rank in it is a multiple of `size`, among them
  /// this rank. All ranks of the axis must call it, in the same order as other calls.
  Group neighbours(Axis axis, int64_t size) const;
  const PipelineLinks& pipeline_links() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// A drawing of the grid, for logs and `teratron plan`.
std::string to_string(const Mesh& mesh);

}  // namespace teratron
