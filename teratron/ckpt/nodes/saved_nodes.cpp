#include "teratron/ckpt/nodes/saved_nodes.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <system_error>

#include "teratron/ckpt/nodes/node_folders.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

// shard-00002.safetensors and shard-00002-1.safetensors are rank 2's (write_shards.h).
std::optional<int64_t> writer_of(const std::string& shard) {
  const std::string beginning = "shard-";
  if (!shard.starts_with(beginning)) return std::nullopt;
  int64_t rank = -1;
  const auto [end, error] =
      std::from_chars(shard.data() + beginning.size(), shard.data() + shard.size(), rank);
  return error == std::errc() && rank >= 0 ? std::optional(rank) : std::nullopt;
}

bool is_here(const fs::path& checkpoint, const std::string& shard) {
  std::error_code ignored;
  return fs::exists(checkpoint / shard, ignored);
}

}  // namespace

std::vector<std::string> missing_shards(const fs::path& checkpoint, const Manifest& manifest) {
  std::vector<std::string> missing;
  for (const ManifestShard& shard : manifest.shards) {
    if (!is_here(checkpoint, shard.file)) missing.push_back(shard.file);
  }
  return missing;
}

std::optional<size_t> node_of_shard(const std::vector<CheckpointNode>& nodes, const std::string& shard) {
  const std::optional<int64_t> rank = writer_of(shard);
  for (size_t node = 0; rank && node < nodes.size(); ++node) {
    if (std::ranges::find(nodes[node].ranks, *rank) != nodes[node].ranks.end()) return node;
  }
  return std::nullopt;
}

std::vector<NodeShards> shards_of_nodes(const fs::path& checkpoint, const Manifest& manifest) {
  std::vector<NodeShards> counts(manifest.nodes.size());
  for (const ManifestShard& shard : manifest.shards) {
    const std::optional<size_t> node = node_of_shard(manifest.nodes, shard.file);
    if (!node) continue;
    ++counts[*node].all;
    if (is_here(checkpoint, shard.file)) ++counts[*node].here;
  }
  return counts;
}

std::vector<Problem> missing_problems(const fs::path& checkpoint, const std::vector<CheckpointNode>& nodes,
                                      const std::vector<std::string>& shards) {
  std::map<size_t, std::vector<std::string>> by_node;
  for (const std::string& shard : shards) {
    if (const auto node = node_of_shard(nodes, shard)) by_node[*node].push_back(shard);
  }
  std::vector<Problem> problems;
  for (const auto& [node, missing] : by_node) {
    const std::string others =
        missing.size() > 1 ? fmt::format(" and {} more", missing.size() - 1) : std::string();
    problems.push_back(
        {.what = fmt::format("the shards of {} are missing: {}{}", describe_node(nodes, node),
                             printable(missing.front()), others),
         .where = printable(checkpoint.string(), 4096),
         .fix =
             "They are in that node's folder, as the nodes shared none: start with it on that node, or copy "
             "its shard-* files beside those of another node"});
  }
  return problems;
}

std::vector<std::string> describe_shards_here(const fs::path& checkpoint) {
  if (read_manifest_index(checkpoint).nodes.empty()) return {};
  const Manifest manifest = read_whole_manifest(checkpoint);
  const std::vector<NodeShards> counts = shards_of_nodes(checkpoint, manifest);
  std::vector<std::string> lines;
  for (size_t node = 0; node < counts.size(); ++node) {
    const auto& [here, all] = counts[node];
    const std::string text = here == all ? fmt::format("{} shards here", all)
                             : here == 0 ? fmt::format("its {} shards are not here", all)
                                         : fmt::format("only {} of its {} shards are here", here, all);
    lines.push_back(fmt::format("{}: {}", describe_node(manifest.nodes, node), text));
  }
  return lines;
}

Manifest without_absent_nodes(const fs::path& checkpoint, Manifest manifest) {
  const std::vector<NodeShards> counts = shards_of_nodes(checkpoint, manifest);
  const bool none = std::ranges::all_of(counts, [](const NodeShards& node) { return node.here == 0; });
  if (none) return manifest;
  std::vector<int64_t> places;  // of the shards that stay; -1 for the others
  std::vector<ManifestShard> kept;
  for (const ManifestShard& shard : manifest.shards) {
    const std::optional<size_t> node = node_of_shard(manifest.nodes, shard.file);
    const bool stays = !node || counts[*node].here > 0;
    places.push_back(stays ? std::ssize(kept) : -1);
    if (stays) kept.push_back(shard);
  }
  manifest.shards = std::move(kept);
  for (auto& [name, tensor] : manifest.tensors) {
    std::erase_if(tensor.chunks, [&](const ManifestChunk& chunk) { return places[chunk.shard] < 0; });
    for (ManifestChunk& chunk : tensor.chunks) chunk.shard = places[chunk.shard];
  }
  return manifest;
}

}  // namespace teratron
