// Work of unknown length on some ranks, while the others wait.
#pragma once

#include <functional>
#include <stop_token>

#include "teratron/comm/ranks/host_group.h"

namespace teratron {

/// Runs `work` on every rank and returns when all have finished it, however long that takes: meanwhile the
/// ranks meet several times a second, so that no collective times out. `work` runs in another thread and
/// must not use the group. When the work of a rank fails or a rank dies, the work of the others is asked to
/// stop. It should soon throw Stopped (comm/stopped.h) or return. Then all ranks throw what went wrong, as
/// run_on_all_ranks() does (collective_errors.h), or that a rank has died. Collective.
void run_without_timeout(HostGroup& group, const std::function<void(const std::stop_token&)>& work);

}  // namespace teratron
