// Manifests as files, and fragments of them put together.
#include <limits>
#include <system_error>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/hash.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/manifest.h"

namespace teratron {

namespace fs = std::filesystem;

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

}  // namespace

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
  std::vector<Problem> problems = size_problems(checkpoint, manifest.shards);
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
                      .state = manifest.state};
  for (const auto& [name, tensor] : manifest.tensors) info.tensors[name] = {tensor.dtype, tensor.shape};
  return info;
}

}  // namespace teratron
