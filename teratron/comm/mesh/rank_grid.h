// The ranks of a job as a grid, by arithmetic alone: no communication and no torch, so that planning tools
// can show a layout that no machine at hand could run.
//
// Order and groups are Megatron-LM's. The order string names the axes, leftmost fastest: under
// "tp-cp-ep-dp-pp" neighbouring ranks share a tensor-parallel group. Two grids lie over the same ranks:
//   dense view   tp x cp x dp x pp     (ep counts 1)
//   expert view  etp x ep x edp x pp   (cp counts 1), etp standing where the order says tp, and edp where dp
// dp and edp are what the other axes leave of the world.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace teratron {

enum class Axis : uint8_t { tp, cp, dp, pp, ep, etp, edp };

/// "tp", "cp"...
std::string name_of(Axis axis);

struct MeshOptions {
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t cp = 1;
  int64_t ep = 1;
  int64_t etp = 1;  // 0: as tp
  int64_t dp = 0;   // 0: what is left of the world
  std::string order = "tp-cp-ep-dp-pp";
};

/// A list of groups, each a list of global ranks; position = rank within the group.
using RankGroups = std::vector<std::vector<int64_t>>;

/// One of the two views: axes in order, fastest first, with their sizes.
struct GridView {
  std::vector<Axis> axes;
  std::vector<int64_t> sizes;
};

/// Both views after every check.
struct RankGrid {
  GridView dense;
  GridView expert;
  int64_t world_size = 1;

  /// Throws UserError(config), with all problems found and the arithmetic: sizes that do not multiply to the
  /// world, an order string that misses an axis in use, a pipeline that differs between the two views.
  RankGrid(const MeshOptions& options, int64_t world_size);

  int64_t size(Axis axis) const;
  /// The groups of ranks that differ only along `axes`, in Megatron-LM's order of enumeration. `axes` must
  /// lie in one view (pp lies in both).
  RankGroups groups(const std::vector<Axis>& axes) const;
  /// First and last stage of each pipeline, which share the word embedding; and the first stage alone.
  RankGroups embedding_groups() const;
  RankGroups position_embedding_groups() const;
};

/// The lists of global ranks of every group of one kind, in Megatron-LM's order of enumeration.
RankGroups rank_groups(const MeshOptions& options, int64_t world_size, const std::vector<Axis>& axes);

/// A picture of the grid: a row per pipeline stage, a cell per data-parallel replica with its tensor-parallel
/// groups divided by '|', and below it every kind of group with more than one rank. Long lists are cut.
std::string to_string(const RankGrid& grid);

}  // namespace teratron
