// The ranks of a job as Python sees them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/comm/world.h"

namespace teratron::python {

/// A rank: the process, joined with those of its job, or a thread of run_ranks().
class Rank {
 public:
  /// This process. UserError(config) if the launcher's environment is contradictory.
  static std::shared_ptr<Rank> join(const WorldOptions& options);
  /// A rank thread's, until end(). The world must outlive it.
  explicit Rank(World& world) : world_(&world) {}

  /// RuntimeError after end().
  World& world() const;
  bool is_process() const { return joined_ != nullptr; }
  /// `work` is called at the end, before the world is gone: whatever holds its communicators lets go of them.
  void at_end(std::weak_ptr<std::function<void()>> work) { at_end_.push_back(std::move(work)); }
  void end();
  /// Fails the job of processes; nothing in others, whose threads end each other.
  void fail(const std::string& reason);

 private:
  Rank() = default;

  std::unique_ptr<JoinedWorld> joined_;
  World* world_ = nullptr;
  std::vector<std::weak_ptr<std::function<void()>>> at_end_;
};

/// "tp" -> Axis::tp. UserError(config) for another name.
Axis axis_named(const std::string& name);

}  // namespace teratron::python
