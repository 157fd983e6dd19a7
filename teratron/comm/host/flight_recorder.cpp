#include "teratron/comm/host/flight_recorder.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/ranges.h>

namespace teratron {
namespace {

constexpr size_t kCapacity = 1024;

}  // namespace

std::string to_string(const CollectiveFingerprint& fingerprint) {
  if (fingerprint.dtype.empty()) return fingerprint.operation;
  return fmt::format("{} {} [{}]", fingerprint.operation, fingerprint.dtype,
                     fmt::join(fingerprint.shape, ", "));
}

std::string describe_group(std::span<const int64_t> ranks) {
  return fmt::format("group [{}]", fmt::join(ranks, " "));
}

std::string describe_ranks(std::span<const int64_t> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string describe_collective(const std::string& fingerprint, int64_t sequence,
                                std::span<const int64_t> ranks) {
  return fmt::format("{} (collective {} of {})", fingerprint, sequence, describe_group(ranks));
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

std::string first_mismatch(std::span<const FlightTrace> traces) {
  int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
  for (const FlightTrace& trace : traces) {
    if (trace.fingerprints.empty()) continue;
    first = std::min(first, trace.count - static_cast<int64_t>(trace.fingerprints.size()) + 1);
    last = std::max(last, trace.count);
  }
  for (int64_t sequence = first; sequence <= last; ++sequence) {
    std::vector<int64_t> ranks;
    std::vector<std::string> fingerprints;
    for (const FlightTrace& trace : traces) {
      const std::string* fingerprint = trace.at(sequence);
      if (!fingerprint) continue;
      ranks.push_back(trace.rank);
      fingerprints.push_back(*fingerprint);
    }
    if (std::string found = describe_mismatch(describe_group(ranks), ranks, fingerprints, sequence);
        !found.empty())
      return found;
  }
  return "";
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

std::string FlightRecorder::dump() const {
  std::string lines;
  for (const CollectiveFingerprint& entry : entries_) lines += to_string(entry) + "\n";
  return lines;
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
