// The ranks of a job as a grid. A Mesh is an immutable value that is passed down: nothing asks a global who
// it is. Order and groups are Megatron-LM's: "tp-cp-ep-dp-pp", leftmost axis fastest; the expert view (etp,
// ep, edp, pp) lies over the same ranks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "teratron/comm/communicator.h"
#include "teratron/comm/mesh/rank_grid.h"

namespace teratron {

/// Some ranks that work together. A group of one is legal and every collective on it is the identity, so no
/// layer ever tests the size.
struct Group {
  int64_t rank = 0;
  int64_t size = 1;
  std::vector<int64_t> ranks = {0};  // global
  std::shared_ptr<Communicator> communicator = self_communicator();
};

/// The ways to the neighbouring pipeline stages, which form a ring (the interleaved schedule goes round it). Each is
/// a communicator of its own with two ranks, the sender first, so that no message waits for one that goes another
/// way. Without a pipeline: groups of one.
struct PipelineLinks {
  Group forward_in;    // activations from the stage before
  Group forward_out;   // to the stage behind
  Group backward_in;   // gradients from the stage behind
  Group backward_out;  // to the stage before
};

class Mesh {
 public:
  /// One rank alone.
  Mesh();
  /// Throws UserError(config) with the arithmetic when the sizes do not multiply to the world.
  Mesh(const MeshOptions& options, World& world);

  int64_t rank() const;
  int64_t world_size() const;
  const RankGrid& grid() const;
  /// The ranks that share this rank's coordinates on all axes not named. The axes must lie in one view: dense
  /// (tp, cp, dp, pp) or expert (etp, ep, edp, pp).
  const Group& group(Axis axis) const;
  const Group& group(std::initializer_list<Axis> axes) const;
  /// All ranks.
  const Group& world() const;
  /// First and last pipeline stage (tied word embeddings), and the first alone (position embeddings).
  /// A rank outside the group gets a group of itself.
  const Group& embedding() const;
  const Group& position_embedding() const;
  const PipelineLinks& pipeline_links() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// A picture of the groups, for logs and `teratron plan`.
std::string to_string(const Mesh& mesh);

}  // namespace teratron
