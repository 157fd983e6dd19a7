#include "teratron/comm/mesh/mesh.h"

#include <algorithm>
#include <map>

#include "teratron/base/error.h"
#include "teratron/comm/host/single_world.h"

namespace teratron {
namespace {

Group single_rank(int64_t rank) {
  return {.ranks = {rank}};
}

}  // namespace

struct Mesh::State {
  /// Creates the groups of one rank. Equal lists share a communicator: axes of size 1 make many of them.
  class GroupFactory {
   public:
    explicit GroupFactory(World& world) : world_(world) {}

    Group make(const std::vector<int64_t>& ranks) {
      if (ranks.size() == 1) return single_rank(ranks[0]);
      Group& group = groups_[ranks];
      if (group.size == 1) {
        group.communicator = world_.group(ranks);
        group.ranks = ranks;
        group.size = static_cast<int64_t>(ranks.size());
        group.rank = std::find(ranks.begin(), ranks.end(), world_.rank()) - ranks.begin();
      }
      return group;
    }

    /// The group that contains this rank; a group of one if none does.
    Group make_mine(const RankGroups& groups) {
      for (const auto& ranks : groups) {
        if (std::find(ranks.begin(), ranks.end(), world_.rank()) != ranks.end()) return make(ranks);
      }
      return single_rank(world_.rank());
    }

   private:
    World& world_;
    std::map<std::vector<int64_t>, Group> groups_;
  };

  RankGrid grid;
  int64_t rank = 0;
  mutable GroupFactory factory;
  std::map<AxisSet, Group> groups;
  Group world;
  PipelineLinks links;

  State(const MeshOptions& options, World& world)
      : grid(options, world.size()), rank(world.rank()), factory(world) {}

  /// Creates the group of every subset of the axes of one view.
  void add_view(const GridView& view) {
    for (unsigned choice = 0; choice < 1U << view.axes.size(); ++choice) {
      std::vector<Axis> axes;
      AxisSet set;
      for (size_t i = 0; i < view.axes.size(); ++i) {
        if ((choice >> i & 1U) == 0) continue;
        axes.push_back(view.axes[i]);
        set = set | view.axes[i];
      }
      if (!groups.contains(set)) groups[set] = factory.make_mine(grid.groups(axes));
    }
  }

  // Same order on every rank, so that none waits for a link that its peer creates later.
  void add_links(World& world) {
    const std::vector<int64_t> ring = groups.at(Axis::pp).ranks;
    for (size_t i = 0; ring.size() > 1 && i < ring.size(); ++i) {
      const int64_t previous = ring[i];
      const int64_t next = ring[(i + 1) % ring.size()];
      if (rank != previous && rank != next) continue;
      const Group forward = link(world, previous, next);
      const Group backward = link(world, next, previous);
      (rank == previous ? links.forward_out : links.forward_in) = forward;
      (rank == previous ? links.backward_in : links.backward_out) = backward;
    }
  }

  Group link(World& world, int64_t sender, int64_t receiver) const {
    return {.rank = rank == sender ? 0 : 1,
            .size = 2,
            .ranks = {sender, receiver},
            .communicator = world.group({sender, receiver})};
  }
};

Mesh::Mesh() {
  SingleWorld world;
  *this = Mesh({}, world);
}

Mesh::Mesh(const MeshOptions& options, World& world) {
  auto state = std::make_shared<State>(options, world);
  std::vector<int64_t> all(world.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  state->world = state->factory.make(all);
  state->add_view(state->grid.dense);
  state->add_view(state->grid.expert);
  state->add_links(world);
  state_ = std::move(state);
}

int64_t Mesh::rank() const {
  return state_->rank;
}
int64_t Mesh::world_size() const {
  return state_->grid.world_size;
}
const RankGrid& Mesh::grid() const {
  return state_->grid;
}
const Group& Mesh::group(AxisSet axes) const {
  const auto it = state_->groups.find(axes);
  TERATRON_ASSERT(it != state_->groups.end(), "{} mixes axes of the dense and the expert view",
                  to_string(axes));
  return it->second;
}

const Group& Mesh::world() const {
  return state_->world;
}

Group Mesh::stage_group(const std::vector<int64_t>& stages) const {
  std::vector<int64_t> ranks;
  for (const int64_t stage : stages) ranks.push_back(group(Axis::pp).ranks.at(stage));
  return state_->factory.make(ranks);
}

const PipelineLinks& Mesh::pipeline_links() const {
  return state_->links;
}

std::string to_string(const Mesh& mesh) {
  return to_string(mesh.grid());
}

}  // namespace teratron
