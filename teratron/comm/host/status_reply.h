// The answer of a rank to another one that waits for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "teratron/comm/host/frame.h"
#include "teratron/comm/ranks/flight_recorder.h"

namespace teratron {

struct RankWait {
  int64_t sequence = 0;                 // the collective of the group in which a rank waits
  std::vector<int64_t> for_ranks = {};  // some of those that it waits for
};

struct StatusReply {
  std::string status;                 // a sentence (to_string(RankStatus))
  FlightTrace trace;                  // its last calls in the group of the query
  std::optional<RankWait> wait = {};  // nullopt: not in this group
  bool diagnoses = false;             // its own wait in this group has timed out
};

constexpr size_t kMaxAwaited = 8;           // ranks in `for_ranks`
constexpr int64_t kMaxCallsInReply = 1024;  // fingerprints in `trace`
constexpr size_t kQueriedAtOnce = 64;       // ranks whose replies are awaited together

/// A frame of kind status_reply without its body, and the body.
Frame status_frame(uint64_t group_id, const StatusReply& reply);
std::string status_body(const StatusReply& reply);
/// Parses the frame that `rank` has sent. Throws Fault if it is malformed.
StatusReply parse_status(const Frame& frame, int64_t rank);

}  // namespace teratron
