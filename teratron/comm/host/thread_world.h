// Ranks as threads of one process: every parallel code path runs in a plain test without a GPU.
#pragma once

#include <chrono>
#include <functional>

#include "teratron/comm/mesh/mesh.h"

namespace teratron {

struct ThreadOptions {
  /// How long a rank waits for the others before it throws Fault. Deadlocks, ended ranks and mismatched
  /// collectives are detected much sooner.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// Runs `body` on `ranks` threads, each with its own World and with at::set_num_threads(1). If one throws,
/// all groups are aborted, all threads are joined and the first exception is rethrown.
void run_ranks(int64_t ranks, const std::function<void(World&)>& body, ThreadOptions threads = {});

/// Gives `body` a Mesh over these ranks; dp defaults to 1.
void run_ranks(MeshOptions options, const std::function<void(const Mesh&)>& body, ThreadOptions threads = {});

}  // namespace teratron
