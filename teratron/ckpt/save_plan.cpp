#include "teratron/ckpt/save_plan.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/ckpt/safetensors.h"

namespace teratron {

namespace {

using nlohmann::json;

struct Holder {
  int64_t rank = 0;
  size_t source = 0;
};

struct HeldRegion {
  Region region;
  std::vector<Holder> holders;
};

struct HeldTensor {
  TensorInfo info;
  std::map<std::string, HeldRegion> regions;  // by their text: all ranks see the same order
};

json describe(const LocalTensor& tensor) {
  const Shard& shard = tensor.shard;
  // A sharding that leaves the tensor whole equals a replicated one.
  const bool whole = shard.dim < 0 || (shard.parts == 1 && shard.padded == shard.global_shape[shard.dim]);
  json region = json::array({tensor.flat_begin, flat_end_of(tensor)});
  if (!whole)
    region.insert(region.end(), {shard.dim, shard.segments, shard.padded, shard.parts, shard.index});
  return {tensor.name, static_cast<int>(tensor.dtype), shard.global_shape, std::move(region)};
}

Region region_from(const json& value, const std::vector<int64_t>& shape) {
  Region region{
      .sharding = Shard::replicated(shape), .flat_begin = value[0], .flat_end = value[1], .trimmed = {}};
  if (value.size() > 2) {
    region.sharding.dim = value[2];
    region.sharding.segments = value[3].get<std::vector<int64_t>>();
    region.sharding.padded = value[4];
    region.sharding.parts = value[5];
    region.sharding.index = value[6];
  }
  return region;
}

int64_t numel_of(const Region& region) {
  const Shard& shard = region.sharding;
  const bool padded = shard.dim >= 0 && shard.padded != shard.global_shape[shard.dim];
  return padded ? total_length(index_ranges(region)) : region.flat_end - region.flat_begin;
}

std::map<std::string, HeldTensor> gather_held(const std::vector<LocalTensor>& tensors, HostGroup& group) {
  json mine = json::array();
  for (const LocalTensor& tensor : tensors) mine.push_back(describe(tensor));
  const std::vector<uint8_t> bytes = json::to_cbor(mine);
  const std::vector<std::string> all = group.all_gather_bytes({bytes.begin(), bytes.end()});
  std::map<std::string, HeldTensor> held;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const json list = json::from_cbor(all[rank]);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string name = list[i][0];
      const TensorInfo info{static_cast<Dtype>(list[i][1].get<int>()), list[i][2]};
      const auto [entry, is_new] = held.try_emplace(name, HeldTensor{info, {}});
      TERATRON_ASSERT(is_new || entry->second.info == info, "rank {} has another dtype or shape of {}", rank,
                      name);
      HeldRegion& region = entry->second.regions[list[i][3].dump()];
      if (region.holders.empty()) region.region = region_from(list[i][3], info.shape);
      region.holders.push_back({static_cast<int64_t>(rank), i});
    }
  }
  return held;
}

// A region that one rank writes.
struct Chunk {
  const HeldRegion* held;
  Region region;
  std::vector<IndexRange> ranges;  // empty unless trimmed
  int64_t numel;
};

// Chunks that together hold every element once. Index ranges are computed only if regions overlap.
std::vector<Chunk> disjoint_chunks(const HeldTensor& tensor) {
  std::vector<Chunk> chunks;
  int64_t total = 0;
  for (const auto& [text, held] : tensor.regions) {
    const int64_t numel = numel_of(held.region);
    if (numel > 0) chunks.push_back({&held, held.region, {}, numel});
    total += numel;
  }
  if (total <= checked_numel(tensor.info.shape)) return chunks;
  std::vector<IndexRange> covered;
  std::vector<Chunk> disjoint;
  for (Chunk& chunk : chunks) {
    std::vector<IndexRange> rest = subtract(index_ranges(chunk.region), covered);
    if (rest.empty()) continue;
    covered = merge_disjoint(covered, rest);
    const int64_t left = total_length(rest);
    if (left != chunk.numel) {
      int64_t stored = 0;
      chunk.region = Region{.sharding = Shard::replicated(tensor.info.shape)};
      for (const IndexRange& range : rest) {
        chunk.region.trimmed.push_back({range.global, stored, range.length});
        stored += range.length;
      }
      chunk.ranges = std::move(rest);
      chunk.numel = left;
    }
    disjoint.push_back(std::move(chunk));
  }
  return disjoint;
}

void check_coverage(const std::string& name, const TensorInfo& info, const std::vector<Chunk>& chunks) {
  std::vector<IndexRange> all;
  for (const Chunk& chunk : chunks) {
    const std::vector<IndexRange> ranges = index_ranges(chunk.region);
    all.insert(all.end(), ranges.begin(), ranges.end());
  }
  const int64_t end = covered_prefix(std::move(all));
  TERATRON_ASSERT(end == checked_numel(info.shape), "{}: no rank holds element {}", name, end);
}

}  // namespace

int64_t flat_end_of(const LocalTensor& tensor) {
  return tensor.flat_end < 0 ? local_numel(tensor.shard) : tensor.flat_end;
}

std::vector<bool> written_tensors(const SavePlan& plan, size_t tensors) {
  std::vector<bool> written(tensors, false);
  for (const SaveItem& item : plan.items) written[item.source] = true;
  return written;
}

SavePlan plan_save(const std::vector<LocalTensor>& tensors, HostGroup& group) {
  SavePlan plan;
  std::vector<int64_t> load(group.size(), 0);
  for (const auto& [name, held] : gather_held(tensors, group)) {
    plan.tensors.emplace(name, held.info);
    const std::vector<Chunk> chunks = disjoint_chunks(held);
    if (group.rank() == 0) check_coverage(name, held.info, chunks);
    for (const Chunk& chunk : chunks) {
      const auto writer =
          std::min_element(chunk.held->holders.begin(), chunk.held->holders.end(),
                           [&load](const Holder& a, const Holder& b) { return load[a.rank] < load[b.rank]; });
      load[writer->rank] += chunk.numel * size_of(held.info.dtype);
      if (writer->rank != group.rank()) continue;
      plan.items.push_back({name, writer->source, chunk.region,
                            chunk.ranges.empty() ? index_ranges(chunk.region) : chunk.ranges});
    }
  }
  return plan;
}

}  // namespace teratron
