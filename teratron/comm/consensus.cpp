#include "teratron/comm/consensus.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/comm/host/flight_recorder.h"

namespace teratron {
namespace {

using nlohmann::json;

constexpr size_t kMaxValueLength = 60;  // in messages

std::string describe_values(std::span<const int64_t> ranks, std::span<const std::string> values) {
  std::vector<std::string> parts;
  for (const auto& [value, holders] : group_by_text(ranks, values)) {
    parts.push_back(fmt::format("{} {} {}", describe_ranks(holders), holders.size() == 1 ? "has" : "have",
                                printable(value, kMaxValueLength)));
  }
  return parts.size() <= 1 ? "" : fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::string broadcast_bytes(HostGroup& group, const std::string& bytes) {
  return group.broadcast_bytes(bytes);
}

bool all_true(HostGroup& group, bool value) {
  const std::vector<std::string> all = group.all_gather_bytes(value ? "1" : "");
  return std::find(all.begin(), all.end(), "") == all.end();
}

double all_reduce_min(HostGroup& group, double value) {
  for (const std::string& other : group.all_gather_bytes(fmt::format("{}", value))) {
    value = std::min(value, std::stod(other));
  }
  return value;
}

std::string first_nonempty(HostGroup& group, const std::string& text) {
  for (const std::string& other : group.all_gather_bytes(text)) {
    if (!other.empty()) return other;
  }
  return "";
}

std::vector<std::string> compare_records(HostGroup& group, const Record& record) {
  const std::vector<uint8_t> bytes = json::to_cbor(json(record));  // values may contain any bytes
  std::vector<int64_t> ranks;
  std::vector<std::map<std::string, std::string>> records;
  std::vector<std::string> names;
  std::set<std::string> known;
  const std::vector<std::string> all = group.all_gather_bytes({bytes.begin(), bytes.end()});
  if (std::count(all.begin(), all.end(), all[0]) == static_cast<int64_t>(all.size())) return {};
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto other = json::from_cbor(all[rank]).get<Record>();
    if (other.empty()) continue;
    ranks.push_back(static_cast<int64_t>(rank));
    records.emplace_back(other.begin(), other.end());
    for (const auto& [name, value] : other) {
      if (known.insert(name).second) names.push_back(name);
    }
  }
  std::vector<std::string> differences;
  for (const std::string& name : names) {
    std::vector<std::string> values;
    for (const auto& each : records) {
      const auto found = each.find(name);
      values.push_back(found == each.end() ? "nothing" : found->second);
    }
    const std::string text = describe_values(ranks, values);
    if (!text.empty()) differences.push_back(fmt::format("{}: {}", name, text));
  }
  return differences;
}

}  // namespace teratron
