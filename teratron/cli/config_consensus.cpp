#include "teratron/cli/config_consensus.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/comm/consensus.h"
#include "teratron/comm/ranks/flight_recorder.h"

namespace teratron {
namespace {

using nlohmann::json;

/// May differ between ranks. The settings in the config file may not.
constexpr std::array<const char*, 4> kMayDiffer = {"config_file", "data_cache_path", "num_threads",
                                                   "num_workers"};
constexpr size_t kMaxDifferences = 20;  // listed in the message

NamedValues record_of(const RankConfig& mine) {
  json settings = json::parse(mine.settings);
  for (const char* key : kMayDiffer) settings.erase(key);
  const auto name_folder = [&settings](const char* key, const char* folder) {
    if (settings.contains(key) && settings[key].is_string()) settings[key] = folder;
  };
  name_folder("save", "a folder");
  name_folder("load", mine.loads_elsewhere ? "another folder than --save" : "the folder of --save");
  NamedValues record;
  for (const auto& [key, value] : settings.items()) record.emplace_back(key, value.dump());
  record.emplace_back("version of teratron", mine.version);
  return record;
}

UserError inconsistent(std::string what) {
  return config_error({.what = std::move(what),
                       .where = "ranks",
                       .fix = "Start all ranks with the same program and the same command line"});
}

UserError disagreement(std::vector<std::string> differences) {
  const size_t count = differences.size();
  if (count > kMaxDifferences) differences.resize(kMaxDifferences);
  return inconsistent(
      fmt::format("the ranks were started with different settings; {}{}", fmt::join(differences, "; "),
                  count > kMaxDifferences ? fmt::format("; and {} more", count - kMaxDifferences) : ""));
}

/// The error of ranks that reject their settings, if not all ranks have the same one.
UserError rejection(const std::vector<std::string>& errors) {
  std::vector<int64_t> ranks;
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) ranks.push_back(static_cast<int64_t>(rank));
  }
  return inconsistent(fmt::format("{} of {} rejected the settings. Rank {} reports: {}",
                                  describe_ranks(ranks), errors.size(), ranks[0], errors[ranks[0]]));
}

}  // namespace

ExitCode check_config_consensus(const RankConfig& mine, HostGroup& group) {
  const std::vector<std::string> errors = group.gather_bytes(mine.error ? mine.error->what() : "");
  const bool all_same =
      std::adjacent_find(errors.begin(), errors.end(), std::not_equal_to<>()) == errors.end();
  const bool same = group.broadcast_bytes(all_same ? "1" : "") == "1";
  const bool all_reject = same && mine.error;
  const std::vector<std::string> differences =
      same && !all_reject ? find_differences(group, record_of(mine)) : std::vector<std::string>();
  if (same && !all_reject && differences.empty()) return ExitCode::ok;
  // Rank 0's exception ends the collectives of all ranks: it waits until the others need none.
  group.gather_bytes("");
  if (group.rank() > 0) return all_reject ? mine.error->exit_code() : ExitCode::config;
  if (all_reject) throw UserError(*mine.error);
  throw same ? disagreement(differences) : rejection(errors);
}

}  // namespace teratron
