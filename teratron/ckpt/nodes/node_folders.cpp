#include "teratron/ckpt/nodes/node_folders.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/environment.h"
#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/comm/collective_errors.h"
#include "teratron/comm/ranks/flight_recorder.h"

// Fault point: ckpt.before_late_commit.

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::string_view partial_mark = ".partial-";
constexpr std::string_view probe_prefix = ".teratron-probe-";

// A file that is there as long as this object.
class Probe {
 public:
  /// Creates the directory if needed.
  Probe(const fs::path& directory, const std::string& name) : path_(directory / name) {
    make_directories(directory, ExitCode::config);
    const std::array<char, 4096> block = {};
    try {
      write_text(path_, {block.data(), block.size()}, ExitCode::config);
    } catch (const IoFault& fault) {
      if (!fault.is_full()) throw;
      throw config_error({.what = fault.what(), .fix = "Free space, or choose another folder with --save"});
    }
  }
  ~Probe() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

 private:
  fs::path path_;
};

// Probes of killed starts; those of a job that starts now are younger.
void remove_old_probes(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) return;
  const auto oldest = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const std::string& name : list_directory(directory, ExitCode::config)) {
    if (name.starts_with(probe_prefix) && fs::last_write_time(directory / name, ignored) < oldest)
      fs::remove(directory / name, ignored);
  }
}

// What a rank sees while all ranks have probes.
struct View {
  std::set<int64_t> ranks;  // whose probes are there
  std::string host;
  std::string folder;
};

json to_json(const View& view) {
  return {view.ranks, view.host, view.folder};
}

// The nodes; nullopt if two ranks that see each other do not see the same ranks, as where a network file
// system shows new files late.
std::optional<json> nodes_of(const std::vector<std::string>& texts) {
  std::map<int64_t, json> nodes;  // by lowest rank
  for (int64_t rank = 0; rank < std::ssize(texts); ++rank) {
    const json view = json::parse(texts[rank]);
    const auto ranks = view[0].get<std::set<int64_t>>();
    if (!ranks.contains(rank)) return std::nullopt;
    const auto [node, is_new] = nodes.emplace(*ranks.begin(), json{{"ranks", ranks}});
    if (is_new) node->second.update({{"host", view[1]}, {"folder", view[2]}});
    if (node->second["ranks"] != view[0]) return std::nullopt;
  }
  json list = json::array();
  for (auto& [lowest, node] : nodes) list.push_back(std::move(node));
  return list;
}

NodeFolders folders_from(const json& list, int64_t rank) {
  NodeFolders found;
  if (list.size() == 1) return found;
  for (const json& node : list) {
    found.nodes.push_back({node["host"], node["ranks"]});
    found.folders.push_back(node["folder"]);
    if (std::ranges::find(found.nodes.back().ranks, rank) != found.nodes.back().ranks.end())
      found.mine = std::ssize(found.nodes) - 1;
  }
  return found;
}

std::set<int64_t> probes_in(const fs::path& directory, const std::string& beginning) {
  std::set<int64_t> ranks;
  for (const std::string& name : list_directory(directory, ExitCode::config)) {
    if (name.starts_with(beginning)) ranks.insert(std::stoll(name.substr(beginning.size())));
  }
  return ranks;
}

// Every rank writes a file and looks for those of the others.
NodeFolders compare_views(const fs::path& directory, const std::string& beginning, HostGroup& group) {
  constexpr std::chrono::milliseconds limit(10'000), pause(200);
  std::optional<Probe> probe;
  run_on_all_ranks(group, [&] { probe.emplace(directory, beginning + std::to_string(group.rank())); });
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    const std::string found = run_on_all_ranks(
        group,
        [&] {
          return to_json({probes_in(directory, beginning), host_name(), fs::absolute(directory).string()})
              .dump();
        },
        [&](const std::vector<std::string>& views) {
          const std::optional<json> nodes = nodes_of(views);
          if (nodes) return nodes->dump();
          if (std::chrono::steady_clock::now() - begin < limit) return std::string();
          throw config_error({.what = "ranks that share this folder do not see each other's files in it",
                              .where = printable(directory.string(), 4096),
                              .fix = "Give each machine a folder that it alone has, or all of them one on a "
                                     "file system that shows new files everywhere"});
        });
    if (!found.empty()) return folders_from(json::parse(found), group.rank());
    std::this_thread::sleep_for(pause);
  }
}

// The saves in a folder that wait for their commit.
std::vector<std::string> prepared_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const fs::path& path : find_leftovers(directory)) {
    const std::string name = path.filename().string();
    const size_t mark = name.find(partial_mark);
    if (mark != name.npos && is_prepared(path, name.substr(mark + partial_mark.size())))
      names.push_back(name);
  }
  return names;
}

std::string committed_name(const std::string& partial) {
  return partial.substr(0, partial.find(partial_mark));
}

bool has_committed(const fs::path& directory, const std::string& partial) {
  return is_prepared(directory / committed_name(partial),
                     partial.substr(partial.find(partial_mark) + partial_mark.size()));
}

}  // namespace

std::string describe_node(const std::vector<CheckpointNode>& nodes, size_t node) {
  return fmt::format("node {} ({} on {})", node, describe_ranks(nodes[node].ranks),
                     printable(nodes[node].host, 256));
}

std::string describe(const NodeFolders& folders) {
  std::vector<std::string> parts;
  for (size_t node = 0; node < folders.nodes.size(); ++node) {
    parts.push_back(
        fmt::format("{}: {}", describe_node(folders.nodes, node), printable(folders.folders[node], 4096)));
  }
  if (parts.empty()) return "";
  return fmt::format(
      "the nodes do not share --save: each keeps the shards of its ranks, and a checkpoint is complete with "
      "those of all. {}",
      fmt::join(parts, "; "));
}

NodeFolders check_save_directory(const fs::path& directory, HostGroup& group) {
  std::optional<Probe> probe;
  const std::string name = run_on_rank_0(group, [&] {
    remove_old_probes(directory);
    const std::string name = std::string(probe_prefix) + random_hex(16);
    probe.emplace(directory, name);
    return name;
  });
  const std::string seen_by_all = run_on_all_ranks(
      group,
      [&] {
        std::error_code ignored;
        return std::string(fs::exists(directory / name, ignored) ? "" : "hidden");
      },
      [](const std::vector<std::string>& views) {
        const bool all = std::ranges::all_of(views, &std::string::empty);
        return std::string(all ? "seen" : "");
      });
  if (!seen_by_all.empty()) return {};
  return compare_views(directory, name + "-", group);
}

bool is_prepared(const fs::path& partial, const std::string& run_id) {
  std::error_code ignored;
  if (!fs::exists(partial / "manifest.json", ignored)) return false;
  try {
    return read_manifest_index(partial).run_id == run_id;
  } catch (const UserError&) {
    return false;
  }
}

void finish_commits(const fs::path& directory, const NodeFolders& folders, HostGroup& group) {
  if (folders.is_shared()) return;
  const bool follows = group.rank() > 0 && folders.leads(group.rank());
  std::vector<std::string> mine;
  const std::string committed = run_on_all_ranks(
      group,
      [&] {
        if (follows) mine = prepared_in(directory);
        return json(mine).dump();
      },
      [&directory](const std::vector<std::string>& lists) {
        std::set<std::string> all;
        for (const std::string& list : lists) all.merge(json::parse(list).get<std::set<std::string>>());
        std::erase_if(all, [&](const std::string& partial) { return !has_committed(directory, partial); });
        return json(all).dump();
      });
  const auto names = json::parse(committed).get<std::set<std::string>>();
  run_on_all_ranks(group, [&] {
    for (const std::string& partial : mine) {
      if (!names.contains(partial)) continue;
      fault_point("ckpt.before_late_commit");
      const std::string name = committed_name(partial);
      commit_directory(directory / partial, directory / name);
      write_tracker(directory, iteration_of(name).value());
      notice("{}: the commit of {} was interrupted on this node, and is finished now",
             printable(directory.string(), 4096), name);
    }
  });
}

}  // namespace teratron
