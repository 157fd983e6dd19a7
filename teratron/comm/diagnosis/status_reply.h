// What a rank answers to another one that waits for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "teratron/comm/host/flight_recorder.h"
#include "teratron/comm/host/frame.h"

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

/// Most ranks named in `for_ranks`.
constexpr size_t kMaxAwaited = 8;

/// As a frame of kind status_reply without a body, and the body.
Frame status_frame(uint64_t group_id, const StatusReply& reply);
std::string status_body(const StatusReply& reply);
/// Of the frame that `rank` has sent. Throws Fault if it is malformed.
StatusReply parse_status(const Frame& frame, int64_t rank);

}  // namespace teratron
