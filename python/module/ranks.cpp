#include "python/module/ranks.h"

#include <stdexcept>
#include <utility>

#include "teratron/comm/launch_env.h"

namespace teratron::python {

std::shared_ptr<Rank> Rank::join(const WorldOptions& options) {
  auto rank = std::shared_ptr<Rank>(new Rank);
  rank->joined_ = std::make_unique<JoinedWorld>(read_launch_env(process_environment), options);
  rank->world_ = &rank->joined_->world();
  return rank;
}

World& Rank::world() const {
  if (world_) return *world_;
  throw std::runtime_error("the ranks of this world have come to their end");
}

void Rank::end() {
  for (const auto& work : std::exchange(at_end_, {})) {
    if (const auto alive = work.lock()) (*alive)();
  }
  world_ = nullptr;
  if (joined_) joined_->finish();
}

void Rank::fail(const std::string& reason) {
  if (joined_ && world_) joined_->fail(reason, ExitCode::retryable);
}

Axis axis_named(const std::string& name) {
  for (const auto& [axis, known] : {std::pair{Axis::tp, "tp"},
                                    {Axis::pp, "pp"},
                                    {Axis::cp, "cp"},
                                    {Axis::dp, "dp"},
                                    {Axis::ep, "ep"},
                                    {Axis::etp, "etp"},
                                    {Axis::edp, "edp"}}) {
    if (name == known) return axis;
  }
  throw config_error({.what = fmt::format("'{}' is not an axis of a mesh", printable(name, 40)),
                      .where = "axis",
                      .fix = "Use tp, pp, cp, dp, ep, etp or edp"});
}

}  // namespace teratron::python
