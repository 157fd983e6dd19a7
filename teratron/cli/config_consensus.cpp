#include "teratron/cli/config_consensus.h"

#include <algorithm>
#include <array>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/comm/host/flight_recorder.h"

namespace teratron {
namespace {

using nlohmann::json;

/// The path of the configuration file may differ, what it sets may not.
constexpr std::array<const char*, 4> kMayDiffer = {"config_file", "data_cache_path", "num_threads",
                                                   "num_workers"};
constexpr size_t kShown = 20;  // differences listed
constexpr const char* kCode = "exit code";
constexpr const char* kError = "error message";

std::string message_of(const RankConfig& mine) {
  json message = json::object();
  if (mine.error) {
    message[kCode] = static_cast<int>(mine.error->exit_code());
    message[kError] = mine.error->what();
  } else {
    message = json::parse(mine.settings);
    for (const char* key : kMayDiffer) message.erase(key);
    message["version of teratron"] = mine.version;
  }
  return message.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string shown(const json& settings, const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() ? "nothing" : printable(found->dump(), 60);
}

/// "hidden_size: rank 0 has 64, ranks 1, 3 have 128"; empty if all ranks have the same value.
std::string difference_at(const std::string& key, const std::vector<json>& all) {
  std::vector<int64_t> ranks;
  std::vector<std::string> values;
  for (const json& settings : all) {
    ranks.push_back(static_cast<int64_t>(ranks.size()));
    values.push_back(shown(settings, key));
  }
  const std::string text = describe_disagreement(ranks, values);
  return text.empty() ? "" : fmt::format("{}: {}", key, text);
}

UserError disagreement(const std::vector<json>& all) {
  std::vector<std::string> keys, differences;
  for (const json& settings : all) {
    for (const auto& [key, value] : settings.items()) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  for (const std::string& key : keys) {
    if (std::string text = difference_at(key, all); !text.empty()) differences.push_back(std::move(text));
  }
  const size_t count = differences.size();
  if (count > kShown) differences.resize(kShown);
  return config_error(
      {.what =
           fmt::format("the ranks were started with different settings; {}{}", fmt::join(differences, "; "),
                       count > kShown ? fmt::format("; and {} more", count - kShown) : ""),
       .where = "ranks",
       .fix = "Start all ranks with the same program and the same command line"});
}

/// The error of ranks that reject their settings, if not all ranks have the same one.
UserError rejection(const std::vector<json>& all) {
  std::vector<int64_t> ranks;
  std::string text;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].contains(kError)) continue;
    ranks.push_back(static_cast<int64_t>(rank));
    if (text.empty()) text = all[rank][kError];
  }
  return config_error({.what = fmt::format("{} of {} rejected the settings. Rank {} reports: {}",
                                           describe_ranks(ranks), all.size(), ranks[0], text),
                       .where = "ranks",
                       .fix = "Start all ranks with the same program and the same command line"});
}

}  // namespace

ExitCode check_config_consensus(const RankConfig& mine, HostGroup& group) {
  const std::vector<std::string> messages = group.all_gather_bytes(message_of(mine));
  const bool same =
      std::all_of(messages.begin(), messages.end(), [&](const auto& m) { return m == messages[0]; });
  if (same && !mine.error) return ExitCode::ok;
  if (same && group.rank() == 0) throw UserError(*mine.error);
  if (group.rank() != 0) return same ? mine.error->exit_code() : ExitCode::config;
  std::vector<json> all;
  bool rejected = false;
  for (const std::string& message : messages) {
    all.push_back(json::parse(message));
    rejected = rejected || all.back().contains(kError);
  }
  throw rejected ? rejection(all) : disagreement(all);
}

}  // namespace teratron
