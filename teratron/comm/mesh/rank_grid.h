// The grid of ranks as pure arithmetic: no communication, no torch. Planning tools use it for any world size.
//
// Rank order and groups are Megatron-LM's. The order string names the axes, leftmost fastest: under
// "tp-cp-ep-dp-pp" neighbouring ranks share a tensor-parallel group. Two grids cover the same ranks:
//   dense view   tp x cp x dp x pp     (ep counts 1)
//   expert view  etp x ep x edp x pp   (cp counts 1); the order's tp stands for etp and its dp for edp
// dp and edp are the world size divided by the other axes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "teratron/comm/mesh/axis_set.h"

namespace teratron {

struct MeshOptions {
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t cp = 1;
  int64_t ep = 1;
  int64_t etp = 1;  // 0: tp
  int64_t dp = 0;   // 0: world size / (tp x cp x pp)
  std::string order = "tp-cp-ep-dp-pp";
};

/// Each group lists global ranks; position = rank within the group.
using RankGroups = std::vector<std::vector<int64_t>>;

/// One of the two views: axes in order, fastest first, with their sizes.
struct GridView {
  std::vector<Axis> axes;
  std::vector<int64_t> sizes;
};

/// Both views, validated.
struct RankGrid {
  GridView dense;
  GridView expert;
  int64_t world_size = 1;

  /// Throws UserError(config) listing all problems with the arithmetic: sizes that do not multiply to the
  /// world size, an order string that omits an axis in use, pipelines that differ between the views.
  RankGrid(const MeshOptions& options, int64_t world_size);

  int64_t size(Axis axis) const;
  /// The groups of ranks that differ only along `axes`, in Megatron-LM's order. All axes must belong to one
  /// view (pp belongs to both).
  RankGroups groups(const std::vector<Axis>& axes) const;
  /// First and last stage of each pipeline, which share tied word embeddings.
  RankGroups embedding_groups() const;
};

/// RankGrid(options, world_size).groups(axes).
RankGroups rank_groups(const MeshOptions& options, int64_t world_size, const std::vector<Axis>& axes);

/// A drawing: one row per pipeline stage and one cell per data-parallel replica, whose tensor-parallel groups
/// are separated by '|'; below it the groups of every axis with more than one rank. Lines have at most 110
/// columns, for which long lists are truncated.
std::string to_string(const RankGrid& grid);

}  // namespace teratron
