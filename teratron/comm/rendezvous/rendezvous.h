// Rendezvous of a job's processes at MASTER_ADDR:MASTER_PORT. Rank 0 listens there, on that address only,
// until all ranks have joined: every rank greets it (transport/greeting.h) with its text and receives that
// of its parent in the tree of ranks (ranks/tree.h). Under torchrun its agent's TCPStore serves instead
// (rendezvous/agent_store.h). For n ranks, 2 n messages, or some 10 n requests to the store.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/comm/launch_env.h"
#include "teratron/comm/transport/greeting.h"

namespace teratron {

/// What a rank learns when all have joined.
struct Meeting {
  std::string nonce = {};                     // 32 hexadecimal digits; of this start of the job
  std::map<int64_t, std::string> texts = {};  // rank 0: of all ranks; others: of their parent
  int64_t store_requests = 0;                 // of this rank
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// This node's numeric address as reachable by the other ranks.
  virtual const std::string& own_address() const = 0;
  /// Joins with this rank's text, of at most kMaxGreetingText bytes. To be called once. Throws Fault naming
  /// the ranks that are missing after the timeout, UserError(config) if ranks were started inconsistently or
  /// a rank's text is a start_refusal().
  virtual Meeting meet(const std::string& text) = 0;
};

/// Throws Fault if the port is in use, or if rank 0 cannot be reached within `timeout`; UserError(config) if
/// rank 0 has another secret.
std::unique_ptr<Rendezvous> join_rendezvous(const LaunchEnv& env, std::chrono::milliseconds timeout);

/// What both kinds of rendezvous know and say.
struct RendezvousPoint {
  LaunchEnv env;
  std::chrono::milliseconds timeout;
  SteadyTime deadline = std::chrono::steady_clock::now() + timeout;
  std::string address = {};  // numeric; of MASTER_ADDR

  /// Waits until MASTER_ADDR resolves. Throws Fault.
  void find_address();
  std::string endpoint() const { return fmt::format("{}:{}", env.master_address, env.master_port); }
  /// "{what} within {timeout} s. {advice}"
  std::string timed_out(const std::string& what) const;
  [[noreturn]] void fail(const std::string& what) const { throw Fault(timed_out(what)); }
  [[noreturn]] void fail_unanswered() const;
  std::string missing(const std::vector<int64_t>& ranks) const;
};

constexpr size_t kNonceDigits = 32;

UserError inconsistent_start(const std::string& problem);

/// The text of a rank that cannot start, so that all ranks learn why.
std::string start_refusal(const std::string& problem, const std::string& fix);
bool is_start_refusal(const std::string& text);

}  // namespace teratron
