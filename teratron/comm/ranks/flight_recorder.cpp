#include "teratron/comm/ranks/flight_recorder.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include <fmt/ranges.h>

namespace teratron {
namespace {

constexpr size_t kCapacity = 1024;
constexpr size_t kMaxNamed = 8;  // ranks, or runs of successive ones, in messages

}  // namespace

std::string to_string(const CollectiveFingerprint& fingerprint) {
  if (fingerprint.dtype.empty()) return fingerprint.operation;
  return fmt::format("{} {} [{}]", fingerprint.operation, fingerprint.dtype,
                     fmt::join(fingerprint.shape, ", "));
}

std::string describe_group(std::span<const int64_t> ranks) {
  if (ranks.size() <= kMaxNamed) return fmt::format("group [{}]", fmt::join(ranks, " "));
  const bool successive = ranks.back() - ranks.front() + 1 == std::ssize(ranks);
  if (successive && std::is_sorted(ranks.begin(), ranks.end())) {
    return fmt::format("group [{}-{}]", ranks.front(), ranks.back());
  }
  return fmt::format("group [{} ... of {} ranks]", fmt::join(ranks.first(kMaxNamed), " "), ranks.size());
}

std::string describe_ranks(std::span<const int64_t> ranks) {
  if (ranks.size() <= kMaxNamed) {
    return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
  }
  std::vector<std::string> runs;
  for (size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
    for (end = begin + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1; ++end) {
    }
    const bool single = end - begin == 1;
    runs.push_back(single ? std::to_string(ranks[begin])
                          : fmt::format("{}-{}", ranks[begin], ranks[end - 1]));
  }
  const size_t count = runs.size();
  runs.resize(std::min(count, kMaxNamed));
  return fmt::format("ranks {}{}", fmt::join(runs, ", "),
                     count > kMaxNamed ? fmt::format(" ... ({} in all)", ranks.size()) : "");
}

std::string describe_collective(const std::string& fingerprint, int64_t sequence, const std::string& group) {
  return fmt::format("{} (collective {} of {})", fingerprint, sequence, group);
}

std::vector<std::pair<std::string, std::vector<int64_t>>> group_by_text(std::span<const int64_t> ranks,
                                                                        std::span<const std::string> texts) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> kinds;
  for (size_t i = 0; i < ranks.size(); ++i) {
    auto it =
        std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.first == texts[i]; });
    if (it == kinds.end()) it = kinds.insert(kinds.end(), {texts[i], {}});
    it->second.push_back(ranks[i]);
  }
  return kinds;
}

std::string describe_mismatch(const std::string& group, std::span<const int64_t> ranks,
                              std::span<const std::string> fingerprints, int64_t sequence) {
  const auto kinds = group_by_text(ranks, fingerprints);
  if (kinds.size() <= 1) return "";
  std::vector<std::string> parts;
  for (const auto& [fingerprint, issuers] : kinds)
    parts.push_back(describe_ranks(issuers) + ": " + fingerprint);
  return fmt::format("the ranks of {} differ at their collective {}: {}", group, sequence,
                     fmt::join(parts, "; "));
}

const std::string* FlightTrace::at(int64_t sequence) const {
  const int64_t age = count - sequence;
  const auto size = static_cast<int64_t>(fingerprints.size());
  return age >= 0 && age < size ? &fingerprints[size - 1 - age] : nullptr;
}

namespace {

/// The traces that reach back to a sequence number.
struct CallsAt {
  std::vector<int64_t> ranks = {};
  std::vector<std::string> fingerprints = {};
};

CallsAt calls_at(std::span<const FlightTrace> traces, int64_t sequence) {
  CallsAt calls;
  for (const FlightTrace& trace : traces) {
    const std::string* fingerprint = trace.at(sequence);
    if (!fingerprint) continue;
    calls.ranks.push_back(trace.rank);
    calls.fingerprints.push_back(*fingerprint);
  }
  return calls;
}

}  // namespace

std::optional<int64_t> first_difference(std::span<const FlightTrace> traces) {
  int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
  for (const FlightTrace& trace : traces) {
    if (trace.fingerprints.empty()) continue;
    first = std::min(first, trace.count - std::ssize(trace.fingerprints) + 1);
    last = std::max(last, trace.count);
  }
  for (int64_t sequence = first; sequence <= last; ++sequence) {
    const CallsAt calls = calls_at(traces, sequence);
    const auto& texts = calls.fingerprints;
    if (std::adjacent_find(texts.begin(), texts.end(), std::not_equal_to<>()) != texts.end()) return sequence;
  }
  return std::nullopt;
}

std::string first_mismatch(std::span<const FlightTrace> traces) {
  const std::optional<int64_t> sequence = first_difference(traces);
  if (!sequence) return "";
  const CallsAt calls = calls_at(traces, *sequence);
  return describe_mismatch(describe_group(calls.ranks), calls.ranks, calls.fingerprints, *sequence);
}

int64_t FlightRecorder::record(const CollectiveFingerprint& fingerprint) {
  entries_.push_back(fingerprint);
  if (entries_.size() > kCapacity) entries_.pop_front();
  return ++count_;
}

std::optional<std::string> FlightRecorder::at(int64_t sequence) const {
  const int64_t age = count_ - sequence, kept = std::ssize(entries_);
  if (age < 0 || age >= kept) return std::nullopt;
  return to_string(entries_[kept - 1 - age]);
}

std::vector<std::string> FlightRecorder::newest(int64_t calls) const {
  std::vector<std::string> fingerprints;
  const int64_t kept = std::ssize(entries_);
  for (int64_t i = kept - std::min(kept, calls); i < kept; ++i)
    fingerprints.push_back(to_string(entries_[i]));
  return fingerprints;
}

std::string to_string(const RankStatus& status) {
  std::string text = "is computing or stuck outside any collective";
  if (!status.waiting_in.empty()) text = "waits in " + status.waiting_in;
  if (status.last_sequence > 0) {
    text +=
        fmt::format(" (its last here was collective {}, {})", status.last_sequence, status.last_collective);
  }
  return text;
}

}  // namespace teratron
