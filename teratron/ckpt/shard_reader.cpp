#include "teratron/ckpt/shard_reader.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>

#include "teratron/base/fault_point.h"
#include "teratron/base/hash.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/safetensors.h"

namespace teratron {

namespace {

constexpr size_t max_open_shards = 64;

// Says which save the file belongs to, if it belongs to another one.
std::string whose(const std::string& header, const ManifestShard& shard, const Manifest& manifest) {
  try {
    const SafetensorsHeader parsed =
        parse_safetensors_header(std::string_view(header).substr(8), shard.bytes - shard.header_bytes, "");
    const auto run = parsed.metadata.find("run_id");
    const auto iteration = parsed.metadata.find("iteration");
    if (run == parsed.metadata.end() || iteration == parsed.metadata.end())
      return "it is another program's file";
    if (run->second != manifest.run_id) {
      return fmt::format("it belongs to save {} of iteration {}, the manifest to save {} of iteration {}",
                         printable(run->second), printable(iteration->second), manifest.run_id,
                         manifest.iteration);
    }
    return "its rank or layout is another one";
  } catch (const UserError&) {
    return "it is damaged";
  }
}

}  // namespace

std::vector<Run> stored_runs(const ManifestPart& part) {
  std::vector<Run> runs = runs_of(part.region);
  int64_t stored = 0;
  for (Run& run : runs) {
    run.local = stored;
    stored += run.length;
  }
  return runs;
}

ShardReader::ShardReader(std::filesystem::path checkpoint, const Manifest& manifest)
    : checkpoint_(std::move(checkpoint)), manifest_(manifest) {}

int64_t ShardReader::block_size(const ManifestPart& part, int64_t block) {
  return std::min(Manifest::block_bytes, part.bytes - block * Manifest::block_bytes);
}

bool ShardReader::check_header(const File& file, const ManifestShard& shard) {
  const std::string where = printable(file.path().string(), 4096);
  const int64_t size = file.size();
  if (size != shard.bytes) {
    problems_.push_back(
        {.what = fmt::format("the shard has {} bytes, the manifest says {}", size, shard.bytes),
         .where = where});
    return false;
  }
  std::string header(static_cast<size_t>(shard.header_bytes), '\0');
  file.read(header.data(), shard.header_bytes, 0);
  if (hash_text(header) == shard.header_hash) return true;
  problems_.push_back(
      {.what = "the shard's header is not the one that was written: " + whose(header, shard, manifest_),
       .where = where});
  return false;
}

ShardReader::OpenShard& ShardReader::open(int64_t shard) {
  const auto found = open_.find(shard);
  if (found != open_.end()) return found->second;
  if (open_.size() >= max_open_shards) open_.erase(open_.begin());
  File file = File::open(checkpoint_ / manifest_.shards[shard].file, ExitCode::checkpoint);
  const bool sound = check_header(file, manifest_.shards[shard]);
  return open_.emplace(shard, OpenShard{std::move(file), sound}).first->second;
}

bool ShardReader::read_block(const std::string& name, const ManifestPart& part, int64_t block, void* out) {
  try {
    const OpenShard& shard = open(part.shard);
    if (!shard.sound) return false;
    const int64_t bytes = block_size(part, block);
    const int64_t offset = part.offset + block * Manifest::block_bytes;
    shard.file.read(out, bytes, offset);
    fault_point("ckpt.load_block", {static_cast<std::byte*>(out), static_cast<size_t>(bytes)});
    bytes_read_ += bytes;
    const auto start = std::chrono::steady_clock::now();
    const bool sound = hash_bytes(out, static_cast<size_t>(bytes)) == part.hashes[block];
    hash_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (sound) return true;
    problems_.push_back({.what = fmt::format("tensor \"{}\": bytes {} to {} do not match their hash",
                                             printable(name), offset, offset + bytes),
                         .where = printable(shard.file.path().string(), 4096)});
  } catch (const UserError& error) {
    // The file vanished or shrank after its size was checked.
    problems_.insert(problems_.end(), error.problems().begin(), error.problems().end());
  }
  return false;
}

}  // namespace teratron
