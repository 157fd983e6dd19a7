#include "teratron/comm/mesh/mesh.h"

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/comm/single_world.h"

namespace teratron {
namespace {

/// The ranks that differ from `rank` along `axes` of the view only, as RankGrid::groups() lists them.
std::vector<int64_t> ranks_along(AxisSet axes, const GridView& view, int64_t rank) {
  std::vector<int64_t> ranks = {rank};
  int64_t distance = 1;  // between neighbours along the axis
  for (size_t i = 0; i < view.axes.size(); distance *= view.sizes[i], ++i) {
    if (!axes.contains(view.axes[i])) continue;
    const int64_t before = rank / distance % view.sizes[i] * distance;
    for (int64_t& first : ranks) first -= before;
    const size_t count = ranks.size();
    for (int64_t step = 1; step < view.sizes[i]; ++step) {
      for (size_t k = 0; k < count; ++k) ranks.push_back(ranks[k] + step * distance);
    }
  }
  return ranks;
}

}  // namespace

struct Mesh::State {
  /// Creates the groups of one rank. Equal lists are one group: axes of size 1 make many of them.
  class GroupFactory {
   public:
    explicit GroupFactory(World& world) : world_(world) {}

    const Group& make(const std::vector<int64_t>& ranks) {
      const RankList list = ranks;
      for (const Group& known : groups_) {
        if (known.ranks == list) return known;
      }
      return make_another(ranks);
    }
    /// Not shared with other axes.
    const Group& make_another(const std::vector<int64_t>& ranks) {
      Group group{.size = std::ssize(ranks), .ranks = ranks};
      group.rank = group.ranks.find(world_.rank()).value();
      if (group.size > 1) group.communicator = world_.group(ranks);
      return groups_.emplace_back(std::move(group));
    }

   private:
    World& world_;
    std::deque<Group> groups_;
  };

  RankGrid grid;
  int64_t rank = 0;
  mutable GroupFactory factory;
  std::map<AxisSet, const Group*> groups;
  const Group* world = nullptr;
  PipelineLinks links;

  State(const MeshOptions& options, World& world)
      : grid(options, world.size()), rank(world.rank()), factory(world) {}

  /// Creates the group of every subset of the axes of one view.
  void add_view(const GridView& view) {
    for (unsigned choice = 0; choice < 1U << view.axes.size(); ++choice) {
      AxisSet axes;
      for (size_t i = 0; i < view.axes.size(); ++i) {
        if ((choice >> i & 1U) != 0) axes = axes | view.axes[i];
      }
      if (groups.contains(axes)) continue;
      const std::vector<int64_t> ranks = ranks_along(axes, view, rank);
      // Tokens on their way to experts do not wait for collectives of gradients.
      const bool carries_tokens = axes == AxisSet(Axis::ep) && ranks.size() > 1;
      groups[axes] = carries_tokens ? &factory.make_another(ranks) : &factory.make(ranks);
    }
  }

  // Same order on every rank, so that none waits for a link that its peer creates later.
  void add_links(World& world) {
    const RankList& ring = groups.at(Axis::pp)->ranks;
    for (int64_t i = 0; ring.size() > 1 && i < ring.size(); ++i) {
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
  state->world = &state->factory.make(all);
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
  return *it->second;
}

const Group& Mesh::world() const {
  return *state_->world;
}

Group Mesh::stage_group(const std::vector<int64_t>& stages) const {
  std::vector<int64_t> ranks;
  for (const int64_t stage : stages) ranks.push_back(group(Axis::pp).ranks[stage]);
  return state_->factory.make(ranks);
}

Group Mesh::neighbours(Axis axis, int64_t size) const {
  const Group& all = group(axis);
  TERATRON_ASSERT(all.size % size == 0, "{} of {} ranks", size, all.size);
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < size; ++i) ranks.push_back(all.ranks[all.rank / size * size + i]);
  return state_->factory.make(ranks);
}

const PipelineLinks& Mesh::pipeline_links() const {
  return state_->links;
}

std::string to_string(const Mesh& mesh) {
  return to_string(mesh.grid());
}

}  // namespace teratron
