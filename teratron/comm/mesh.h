// The ranks of a job as a grid. A Mesh is an immutable value that is passed down: nothing asks a global who it is.
// Order and groups are Megatron-LM's: "tp-cp-ep-dp-pp", leftmost axis fastest; the expert view (etp, ep, edp,
// pp) lies over the same ranks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "teratron/comm/communicator.h"

namespace teratron {

enum class Axis : uint8_t { tp, cp, dp, pp, ep, etp, edp };

/// Some ranks that work together. A group of one is legal and every collective on it is the identity, so no
/// layer ever tests the size.
struct Group {
  int64_t rank = 0;
  int64_t size = 1;
  std::vector<int64_t> ranks = {0};  // global
  std::shared_ptr<Communicator> communicator = self_communicator();
};

struct MeshOptions {
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t cp = 1;
  int64_t ep = 1;
  int64_t etp = 1;
  int64_t dp = 0;  // 0: what is left of the world
  std::string order = "tp-cp-ep-dp-pp";
};

class Mesh {
 public:
  /// One rank alone.
  Mesh();
  /// Throws UserError(config) with the arithmetic when the sizes do not multiply to the world.
  Mesh(const MeshOptions& options, World& world);

  int64_t rank() const;
  int64_t world_size() const;
  /// The ranks that share this rank's coordinates on all axes not named.
  const Group& group(Axis axis) const;
  const Group& group(std::initializer_list<Axis> axes) const;
  /// All ranks.
  const Group& world() const;
  /// First and last pipeline stage (tied word embeddings), and the first alone (position embeddings).
  /// A rank outside the group gets a group of itself.
  const Group& embedding() const;
  const Group& position_embedding() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// The lists of global ranks of every group of one kind, in Megatron-LM's order of enumeration.
std::vector<std::vector<int64_t>> rank_groups(const MeshOptions& options, int64_t world_size,
                                              const std::vector<Axis>& axes);

/// A picture of the groups, for logs and `teratron plan`.
std::string to_string(const Mesh& mesh);

}  // namespace teratron
