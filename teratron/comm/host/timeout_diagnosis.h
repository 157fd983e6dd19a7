// Why a wait of ProcessBackend did not end in time. Internal to process_backend.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "teratron/comm/host/process_backend.h"

namespace teratron {

/// Asks other ranks for their last calls and compares the answers (process_backend.h says who asks whom).
/// While it lives, this rank answers that it diagnoses the group.
class TimeoutDiagnosis {
 public:
  /// `lock` is the backend's. It is released while replies are awaited.
  TimeoutDiagnosis(ProcessBackend& backend, ProcessBackend::Lock& lock,
                   const ProcessBackend::WaitCondition& wait);
  ~TimeoutDiagnosis() { backend_.diagnosing_.erase(here_); }
  TimeoutDiagnosis(const TimeoutDiagnosis&) = delete;
  TimeoutDiagnosis& operator=(const TimeoutDiagnosis&) = delete;
  /// The Fault's text: a mismatch of calls, or the ranks that are late or silent. If the job fails meanwhile,
  /// the text of that failure.
  std::string cause();

 private:
  using Replies = ProcessBackend::Replies;

  bool job_failed() const { return backend_.failure_.has_value(); }
  bool has_tree() const { return wait_.sequence != ProcessBackend::WaitCondition::kNoSequence; }
  const RankList& members() const { return backend_.groups_.at(wait_.group_id); }
  int64_t position_of(int64_t rank) const { return members().find(rank).value(); }
  void ask(const std::vector<int64_t>& ranks);
  void leave_to_ancestor();
  std::vector<int64_t> next_to_ask(size_t most) const;
  void query_waited_for();
  std::string mismatch_among(uint64_t group_id, const Replies& replies);
  std::string mismatch_elsewhere(const std::vector<int64_t>& ranks);
  std::vector<std::string> describe_late() const;

  ProcessBackend& backend_;
  ProcessBackend::Lock& lock_;
  const ProcessBackend::WaitCondition& wait_;
  const std::multiset<uint64_t>::iterator here_;  // in the backend's list
  Replies replies_;  // in the group of the wait; a silent rank's trace has rank -1
};

}  // namespace teratron
