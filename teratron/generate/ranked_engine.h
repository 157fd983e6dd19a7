// An engine on all ranks of a job, driven by rank 0, which alone knows the requests.
//
//   RankedEngine engine(local, ranks);
//   if (ranks.rank() != 0) return engine.follow();
//   engine.submit(...); while (engine.step()) {} ... engine.stop();
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "teratron/generate/engine.h"

namespace teratron {

class RankedEngine {
 public:
  /// `ranks`: all of the model. Both must outlive it.
  RankedEngine(Engine& engine, HostGroup& ranks) : engine_(engine), ranks_(ranks) {}

  // On rank 0, as Engine.
  int64_t submit(GenerationRequest request);
  void cancel(int64_t id);
  bool step();
  std::vector<GenerationResult> take_results() { return engine_.take_results(); }
  const Engine& local() const { return engine_; }
  /// Must be called now and then while there is nothing to do, well within the time that other ranks wait.
  void keep_alive();
  /// Ends follow() on the other ranks.
  void stop();

  /// On the other ranks: does what rank 0 does, until it calls stop().
  void follow();

 private:
  void send();

  Engine& engine_;
  HostGroup& ranks_;
  std::vector<std::string> commands_;
};

}  // namespace teratron
