// Manifests as text and files, and fragments of them put together.
#include <limits>
#include <system_error>

#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/hash.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/ckpt/nodes/saved_nodes.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Reads a file of any size: a large manifest is as sound as a small one.
std::string read_any_size(const fs::path& path) {
  try {
    return read_text(path, {.kind = ExitCode::checkpoint, .max_bytes = std::numeric_limits<size_t>::max()});
  } catch (const UserError& error) {
    throw CorruptCheckpoint(error.problems());
  }
}

void check_described(const ManifestFragment& fragment, const Manifest& index, int64_t file,
                     const std::string& where) {
  const auto fail = [&where](std::string what) {
    throw CorruptCheckpoint({{.what = "bad manifest: " + std::move(what), .where = where}});
  };
  for (const auto& [name, tensor] : index.tensors) {
    if (tensor.file != file) continue;
    const auto found = fragment.tensors.find(name);
    if (found == fragment.tensors.end()) fail(fmt::format("tensor \"{}\" is missing", printable(name)));
    if (found->second.dtype != tensor.dtype || found->second.shape != tensor.shape)
      fail(fmt::format("tensor \"{}\" is another one in manifest.json", printable(name)));
  }
  for (const auto& [name, tensor] : fragment.tensors) {
    const auto listed = index.tensors.find(name);
    if (listed == index.tensors.end() || listed->second.file != file)
      fail(fmt::format("manifest.json does not list tensor \"{}\" in this file", printable(name)));
  }
}

json chunk_to_json(const ManifestChunk& chunk) {
  const Region& region = chunk.region;
  json value = {
      {"shard", chunk.shard}, {"name", chunk.stored_name}, {"offset", chunk.offset}, {"bytes", chunk.bytes}};
  if (!region.trimmed.empty()) {
    json ranges = json::array();
    for (const IndexRange& range : region.trimmed) ranges.push_back({range.global, range.length});
    value["runs"] = std::move(ranges);
  } else {
    if (region.sharding.dim >= 0) {
      value["cut"] = {{"dim", region.sharding.dim},
                      {"segments", region.sharding.segments},
                      {"padded", region.sharding.padded},
                      {"parts", region.sharding.parts},
                      {"index", region.sharding.index}};
    }
    value["range"] = {region.flat_begin, region.flat_end};
  }
  std::string hashes;
  for (const uint64_t hash : chunk.hashes) hashes += hash_to_hex(hash);
  value["hashes"] = std::move(hashes);
  return value;
}

json shard_to_json(const ManifestShard& shard) {
  return {{"file", shard.file},
          {"bytes", shard.bytes},
          {"header_bytes", shard.header_bytes},
          {"header_hash", hash_to_hex(shard.header_hash)}};
}

json to_json(const std::map<std::string, ManifestTensor>& tensors) {
  json values = json::object();
  for (const auto& [name, tensor] : tensors) {
    json chunks = json::array();
    for (const ManifestChunk& chunk : tensor.chunks) chunks.push_back(chunk_to_json(chunk));
    values[name] = {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"parts", std::move(chunks)}};
  }
  return values;
}

json to_json(const std::vector<ManifestShard>& shards) {
  json values = json::array();
  for (const ManifestShard& shard : shards) values.push_back(shard_to_json(shard));
  return values;
}

void add_index(const Manifest& manifest, json& value) {
  value["bytes"] = manifest.bytes;
  json files = json::array();
  for (const ManifestFile& file : manifest.files)
    files.push_back({{"file", file.file}, {"bytes", file.bytes}, {"hash", hash_to_hex(file.hash)}});
  value["files"] = std::move(files);
  json& tensors = value["tensors"] = json::object();
  for (const auto& [name, tensor] : manifest.tensors)
    tensors[name] = {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"file", tensor.file}};
}

}  // namespace

std::string to_text(const ManifestFragment& fragment) {
  return json{{"shards", to_json(fragment.shards)}, {"tensors", to_json(fragment.tensors)}}.dump() + "\n";
}

std::string to_text(const Manifest& manifest) {
  const bool is_divided = !manifest.files.empty();
  json value = {{"format", Manifest::format_name},
                {"format_version", is_divided ? "2.0" : "1.0"},
                {"written_by", "0.1.0"},
                {"run_id", manifest.run_id},
                {"iteration", manifest.iteration},
                {"sequence", manifest.sequence},
                {"ranks", manifest.ranks},
                {"block_bytes", Manifest::block_bytes},
                {"config", json::parse(manifest.config)},
                {"state", json::parse(manifest.state)}};
  if (is_divided) {
    add_index(manifest, value);
  } else {
    value["shards"] = to_json(manifest.shards);
    value["tensors"] = to_json(manifest.tensors);
  }
  for (const CheckpointNode& node : manifest.nodes)
    value["nodes"].push_back({{"host", node.host}, {"ranks", node.ranks}});
  std::string text = value.dump();
  text.replace(text.size() - 1, 1, fmt::format(",\"hash\":\"{}\"}}\n", hash_to_hex(hash_text(text))));
  return text;
}

void FragmentBuilder::add_tensor(const std::string& name, const ManifestTensor& tensor) {
  ManifestTensor& added = fragment_.tensors[name];
  added.dtype = tensor.dtype;
  added.shape = tensor.shape;
}

int64_t FragmentBuilder::add_shard(const ManifestShard& shard) {
  const auto next = static_cast<int64_t>(fragment_.shards.size());
  const auto [entry, is_new] = shards_.emplace(shard.file, next);
  if (is_new) fragment_.shards.push_back(shard);
  return entry->second;
}

void FragmentBuilder::add_chunk(const std::string& name, ManifestChunk chunk, const ManifestShard& shard) {
  chunk.shard = add_shard(shard);
  fragment_.tensors.at(name).chunks.push_back(std::move(chunk));
}

void FragmentBuilder::add(const ManifestFragment& other) {
  for (const ManifestShard& shard : other.shards) add_shard(shard);
  for (const auto& [name, tensor] : other.tensors) {
    add_tensor(name, tensor);
    for (const ManifestChunk& chunk : tensor.chunks) add_chunk(name, chunk, other.shards.at(chunk.shard));
  }
}

Manifest read_manifest_index(const fs::path& checkpoint) {
  fault_point("ckpt.read_index");
  const fs::path path = checkpoint / "manifest.json";
  return parse_manifest(read_any_size(path), printable(path.string(), 4096));
}

ManifestFragment read_manifest_file(const fs::path& checkpoint, const Manifest& index, int64_t file) {
  fault_point("ckpt.read_manifest_file");
  const ManifestFile& expected = index.files.at(file);
  const fs::path path = checkpoint / expected.file;
  const std::string where = printable(path.string(), 4096);
  const std::string text = read_any_size(path);
  if (static_cast<int64_t>(text.size()) != expected.bytes || hash_text(text) != expected.hash) {
    throw CorruptCheckpoint(
        {{.what = "the content does not match its hash in manifest.json", .where = where}});
  }
  ManifestFragment fragment = parse_fragment(text, where, Chunks::all);
  check_described(fragment, index, file, where);
  return fragment;
}

Manifest read_whole_manifest(const fs::path& checkpoint) {
  Manifest manifest = read_manifest_index(checkpoint);
  if (manifest.files.empty()) return manifest;
  FragmentBuilder all;
  for (int64_t file = 0; file < static_cast<int64_t>(manifest.files.size()); ++file)
    all.add(read_manifest_file(checkpoint, manifest, file));
  ManifestFragment fragment = all.take();
  manifest.files.clear();
  manifest.shards = std::move(fragment.shards);
  manifest.tensors = std::move(fragment.tensors);
  return manifest;
}

std::vector<Problem> size_problems(const fs::path& checkpoint, const std::vector<ManifestShard>& shards) {
  std::vector<Problem> problems;
  for (const ManifestShard& shard : shards) {
    std::error_code error;
    const fs::path file = checkpoint / shard.file;
    const uintmax_t size = fs::file_size(file, error);
    const std::string where = printable(file.string(), 4096);
    if (error) {
      problems.push_back({.what = "the shard is missing or unreadable: " + error.message(), .where = where});
    } else if (static_cast<int64_t>(size) != shard.bytes) {
      problems.push_back(
          {.what = fmt::format("the shard has {} bytes, but {} in the manifest", size, shard.bytes),
           .where = where});
    }
  }
  return problems;
}

Manifest read_manifest(const fs::path& checkpoint) {
  Manifest manifest = read_whole_manifest(checkpoint);
  std::vector<Problem> problems;
  if (!manifest.nodes.empty())
    problems = missing_problems(checkpoint, manifest.nodes, missing_shards(checkpoint, manifest));
  if (problems.empty()) problems = size_problems(checkpoint, manifest.shards);
  if (!problems.empty()) throw CorruptCheckpoint(std::move(problems));
  return manifest;
}

CheckpointInfo describe_checkpoint(const fs::path& path, const Manifest& manifest) {
  CheckpointInfo info{.path = path,
                      .run_id = manifest.run_id,
                      .iteration = manifest.iteration,
                      .ranks = manifest.ranks,
                      .bytes = manifest.bytes,
                      .config = manifest.config,
                      .state = manifest.state,
                      .tensors = {},
                      .nodes = manifest.nodes};
  for (const auto& [name, tensor] : manifest.tensors) info.tensors[name] = {tensor.dtype, tensor.shape};
  return info;
}

}  // namespace teratron
