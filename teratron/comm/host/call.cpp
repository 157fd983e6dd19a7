#include "teratron/comm/host/call.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/ranges.h>

namespace teratron {

std::string to_string(const Call& call) {
  if (call.dtype.empty()) return call.operation;
  return fmt::format("{} {} [{}]", call.operation, call.dtype, fmt::join(call.shape, ", "));
}

std::string group_in_words(std::span<const int64_t> ranks) {
  return fmt::format("group [{}]", fmt::join(ranks, " "));
}

std::string ranks_in_words(std::span<const int64_t> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string collective_in_words(const std::string& call, int64_t sequence, std::span<const int64_t> ranks) {
  return fmt::format("{} (collective {} of {})", call, sequence, group_in_words(ranks));
}

std::vector<std::pair<std::string, std::vector<int64_t>>> ranks_by_text(std::span<const int64_t> ranks,
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

std::string who_has_what(std::span<const int64_t> ranks, std::span<const std::string> texts) {
  const auto kinds = ranks_by_text(ranks, texts);
  if (kinds.size() <= 1) return "";
  std::vector<std::string> parts;
  for (const auto& [text, holders] : kinds) {
    parts.push_back(
        fmt::format("{} {} {}", ranks_in_words(holders), holders.size() == 1 ? "has" : "have", text));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string difference(std::span<const int64_t> ranks, std::span<const std::string> calls, int64_t sequence) {
  const auto kinds = ranks_by_text(ranks, calls);
  if (kinds.size() <= 1) return "";
  std::vector<std::string> parts;
  for (const auto& [call, askers] : kinds) parts.push_back(ranks_in_words(askers) + ": " + call);
  return fmt::format("the ranks of {} differ at their collective {}: {}", group_in_words(ranks), sequence,
                     fmt::join(parts, "; "));
}

const std::string* CallHistory::at(int64_t number) const {
  const int64_t age = count - number;
  const auto known = static_cast<int64_t>(calls.size());
  return age >= 0 && age < known ? &calls[known - 1 - age] : nullptr;
}

std::string first_difference(std::span<const CallHistory> histories) {
  int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
  for (const CallHistory& history : histories) {
    if (history.calls.empty()) continue;
    first = std::min(first, history.count - static_cast<int64_t>(history.calls.size()) + 1);
    last = std::max(last, history.count);
  }
  for (int64_t number = first; number <= last; ++number) {
    std::vector<int64_t> ranks;
    std::vector<std::string> calls;
    for (const CallHistory& history : histories) {
      const std::string* call = history.at(number);
      if (!call) continue;
      ranks.push_back(history.rank);
      calls.push_back(*call);
    }
    if (std::string differing = difference(ranks, calls, number); !differing.empty()) return differing;
  }
  return "";
}

std::string to_string(const Whereabouts& whereabouts) {
  std::string text = "is computing or stuck outside of any collective";
  if (!whereabouts.waits_in.empty()) text = "waits in " + whereabouts.waits_in;
  if (whereabouts.last_number > 0) {
    text +=
        fmt::format(" (here its last was collective {}, {})", whereabouts.last_number, whereabouts.last_call);
  }
  return text;
}

}  // namespace teratron
