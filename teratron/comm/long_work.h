// Work of unknown length on some ranks, while the others wait.
#pragma once

#include <functional>

#include "teratron/comm/host/host_group.h"

namespace teratron {

/// Runs `work` on every rank and returns when all have finished it, however long that takes: meanwhile the
/// ranks meet several times a second, so that no collective times out and a rank that dies ends the job.
/// `work` runs in another thread and must not use the group. Collective. Rethrows what `work` threw on this
/// rank.
void run_without_timeout(HostGroup& group, const std::function<void()>& work);

}  // namespace teratron
