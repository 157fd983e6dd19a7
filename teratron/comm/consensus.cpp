#include "teratron/comm/consensus.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/sha256.h"
#include "teratron/comm/ranks/flight_recorder.h"

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

/// On rank 0: texts that ranks have, and which text each rank has.
struct DistinctTexts {
  std::vector<std::string> texts = {};
  std::vector<size_t> of_rank = {};
};

/// The texts of all ranks, of which each that differs is sent once: first their hashes, then the text of the
/// first rank with each.
DistinctTexts gather_distinct(HostGroup& group, const std::string& text) {
  const Sha256Digest hash = sha256(text);
  const std::vector<std::string> hashes = group.gather_bytes({hash.begin(), hash.end()});
  DistinctTexts distinct;
  std::map<std::string, size_t> index;
  std::set<int64_t> senders;
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    const auto [found, is_new] = index.emplace(hashes[rank], index.size());
    if (is_new) senders.insert(static_cast<int64_t>(rank));
    distinct.of_rank.push_back(found->second);
  }
  const auto chosen = json::parse(group.broadcast_bytes(json(senders).dump())).get<std::set<int64_t>>();
  if (chosen.size() == 1 && group.rank() > 0) return {};
  if (chosen.size() == 1) return {.texts = {text}, .of_rank = distinct.of_rank};
  for (std::string& other : group.gather_bytes(chosen.contains(group.rank()) ? text : ""))
    if (!other.empty()) distinct.texts.push_back(std::move(other));
  return distinct;
}

/// By name, how the records of the ranks differ.
std::vector<std::string> differences_of(const DistinctTexts& distinct) {
  std::vector<std::map<std::string, std::string>> records;
  std::vector<std::string> names;
  std::set<std::string> known;
  for (const std::string& text : distinct.texts) {
    const auto record = json::from_cbor(text).get<NamedValues>();
    records.emplace_back(record.begin(), record.end());
    for (const auto& [name, value] : record) {
      if (known.insert(name).second) names.push_back(name);
    }
  }
  std::vector<int64_t> ranks;  // that do not abstain
  for (size_t rank = 0; rank < distinct.of_rank.size(); ++rank) {
    if (!records[distinct.of_rank[rank]].empty()) ranks.push_back(static_cast<int64_t>(rank));
  }
  std::vector<std::string> differences;
  for (const std::string& name : names) {
    std::vector<std::string> values;
    for (const int64_t rank : ranks) {
      const auto& record = records[distinct.of_rank[rank]];
      const auto found = record.find(name);
      values.push_back(found == record.end() ? "nothing" : found->second);
    }
    const std::string text = describe_values(ranks, values);
    if (!text.empty()) differences.push_back(fmt::format("{}: {}", name, text));
  }
  return differences;
}

}  // namespace

std::string broadcast_bytes(HostGroup& group, const std::string& bytes) {
  return group.broadcast_bytes(bytes);
}

bool all_true(HostGroup& group, bool value) {
  const std::vector<std::string> all = group.gather_bytes(value ? "1" : "");
  const bool all_are = std::find(all.begin(), all.end(), "") == all.end();
  return group.broadcast_bytes(all_are ? "1" : "") == "1";
}

double all_reduce_min(HostGroup& group, double value) {
  for (const std::string& other : group.gather_bytes(fmt::format("{}", value))) {
    value = std::min(value, std::stod(other));
  }
  return std::stod(group.broadcast_bytes(fmt::format("{}", value)));
}

std::string first_nonempty(HostGroup& group, const std::string& text) {
  std::string found;
  for (const std::string& other : group.gather_bytes(text)) {
    if (found.empty()) found = other;
  }
  return group.broadcast_bytes(found);
}

std::string merge_bytes(HostGroup& group, const std::string& bytes, const MergeBytes& merge) {
  return group.broadcast_bytes(merge_up_tree(group, bytes, merge));
}

std::set<std::string> union_of(HostGroup& group, const std::set<std::string>& words) {
  const auto parse = [](const std::string& text) { return json::parse(text).get<std::set<std::string>>(); };
  const auto merge = [&](const std::string& lower, const std::string& higher) {
    std::set<std::string> all = parse(lower);
    all.merge(parse(higher));
    return json(all).dump();
  };
  return parse(merge_bytes(group, json(words).dump(), merge));
}

std::vector<std::string> find_differences(HostGroup& group, const NamedValues& record) {
  const std::vector<uint8_t> cbor = json::to_cbor(json(record));  // values may contain any bytes
  const std::string bytes(cbor.begin(), cbor.end());
  const DistinctTexts distinct = gather_distinct(group, bytes);
  std::vector<std::string> differences;
  if (group.rank() == 0) differences = differences_of(distinct);
  const std::vector<uint8_t> found = json::to_cbor(json(differences));
  const std::string all = group.broadcast_bytes({found.begin(), found.end()});
  return json::from_cbor(all).get<std::vector<std::string>>();
}

}  // namespace teratron
