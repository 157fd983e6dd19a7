#include "teratron/ckpt/shard_reader.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "teratron/base/fault_point.h"
#include "teratron/base/hash.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/safetensors.h"

namespace teratron {

namespace {

constexpr size_t max_open_shards = 64;

// Why a shard's header is not the one in the manifest.
std::string describe_foreign(const std::string& header, const ManifestShard& shard,
                             const Manifest& manifest) {
  try {
    const auto metadata =
        parse_safetensors_header(std::string_view(header).substr(8), shard.bytes - shard.header_bytes, "")
            .metadata;
    const auto save = metadata.find("run_id");
    const auto iteration = metadata.find("iteration");
    if (save == metadata.end() || iteration == metadata.end()) return "another program wrote it";
    if (save->second == manifest.run_id) return "it has another rank or layout";
    return fmt::format("it belongs to save {} of iteration {}, the manifest to save {} of iteration {}",
                       printable(save->second), printable(iteration->second), manifest.run_id,
                       manifest.iteration);
  } catch (const UserError&) {
    return "it is corrupt";
  }
}

}  // namespace

std::vector<IndexRange> stored_ranges(const ManifestChunk& chunk) {
  std::vector<IndexRange> ranges = index_ranges(chunk.region);
  int64_t stored = 0;
  for (IndexRange& range : ranges) {
    range.local = stored;
    stored += range.length;
  }
  return ranges;
}

ShardReader::ShardReader(std::filesystem::path checkpoint, const Manifest& manifest,
                         const RemoteShards* remote)
    : checkpoint_(std::move(checkpoint)), manifest_(manifest), remote_(remote) {}

int64_t ShardReader::block_size(const ManifestChunk& chunk, int64_t block) {
  return std::min(Manifest::block_bytes, chunk.bytes - block * Manifest::block_bytes);
}

ShardBytes ShardReader::place_of(const ManifestChunk& chunk, int64_t block) const {
  return {.file = manifest_.shards[chunk.shard].file,
          .offset = chunk.offset + block * Manifest::block_bytes,
          .bytes = block_size(chunk, block)};
}

bool ShardReader::check_header(const File& file, const ManifestShard& shard) {
  const std::string where = printable(file.path().string(), 4096);
  const int64_t size = file.size();
  if (size != shard.bytes) {
    problems_.push_back(
        {.what = fmt::format("the shard has {} bytes, but {} in the manifest", size, shard.bytes),
         .where = where});
    return false;
  }
  std::string header(static_cast<size_t>(shard.header_bytes), '\0');
  file.read(header.data(), shard.header_bytes, 0);
  if (hash_text(header) == shard.header_hash) return true;
  problems_.push_back({.what = "the shard's header does not match the manifest: " +
                               describe_foreign(header, shard, manifest_),
                       .where = where});
  return false;
}

// Null if it is missing or not the one in the manifest, which is reported once.
const File* ShardReader::open(int64_t shard) {
  const auto found = open_.find(shard);
  if (found != open_.end()) return &found->second;
  if (invalid_.contains(shard)) return nullptr;
  if (open_.size() >= max_open_shards) open_.erase(open_.begin());
  invalid_.insert(shard);
  const ManifestShard& expected = manifest_.shards[shard];
  try {
    File file = File::open(checkpoint_ / expected.file, ExitCode::checkpoint);
    if (!check_header(file, expected)) return nullptr;
    invalid_.erase(shard);
    return &open_.emplace(shard, std::move(file)).first->second;
  } catch (const UserError& error) {
    Problem problem = error.problems().front();
    problem.what = "the shard is missing or unreadable: " + problem.what;
    problems_.push_back(std::move(problem));
    return nullptr;
  }
}

bool ShardReader::read_bytes(const ManifestChunk& chunk, const ShardBytes& where, void* out) {
  if (remote_ && remote_->holds(where.file)) {
    remote_->read(where, out);
    return true;
  }
  const File* const file = open(chunk.shard);
  if (file) file->read(out, where.bytes, where.offset);
  return file != nullptr;
}

bool ShardReader::read_block(const std::string& name, const ManifestChunk& chunk, int64_t block, void* out) {
  try {
    const ShardBytes where = place_of(chunk, block);
    if (!read_bytes(chunk, where, out)) return false;
    fault_point("ckpt.load_block", {static_cast<std::byte*>(out), static_cast<size_t>(where.bytes)});
    bytes_read_ += where.bytes;
    if (hash_bytes(out, static_cast<size_t>(where.bytes)) == chunk.hashes[block]) return true;
    problems_.push_back({.what = fmt::format("tensor \"{}\": bytes {} to {} do not match their hash",
                                             printable(name), where.offset, where.offset + where.bytes),
                         .where = printable((checkpoint_ / where.file).string(), 4096)});
  } catch (const UserError& error) {
    // Truncated after the check of its size.
    problems_.insert(problems_.end(), error.problems().begin(), error.problems().end());
  }
  return false;
}

}  // namespace teratron
