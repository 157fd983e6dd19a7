#include "teratron/ckpt/save_plan.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/hash.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/comm/collective_errors.h"

namespace teratron {

namespace {

using nlohmann::json;

struct Holder {
  int64_t rank = 0;
  size_t offer = 0;  // index in what it told
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
    region.insert(region.end(),
                  {shard.dim, shard.segments, shard.padded, shard.parts, shard.index, shard.sharers});
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
    region.sharding.sharers = value[7];
  }
  return region;
}

int64_t numel_of(const Region& region) {
  const Shard& shard = region.sharding;
  const bool padded = shard.dim >= 0 && shard.padded != shard.global_shape[shard.dim];
  return padded ? total_length(index_ranges(region)) : region.flat_end - region.flat_begin;
}

// What the ranks hold of the tensors that this rank is responsible for.
std::map<std::string, HeldTensor> held_tensors(const RankBytes& offers) {
  std::map<std::string, HeldTensor> held;
  for (const auto& [rank, bytes] : offers) {
    const json list = json::from_cbor(bytes);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string name = list[i][0];
      const TensorInfo info{static_cast<Dtype>(list[i][1].get<int>()), list[i][2]};
      const auto [entry, is_new] = held.try_emplace(name, HeldTensor{info, {}});
      if (!is_new && entry->second.info != info)
        throw Fault(fmt::format("rank {} has another dtype or shape of {}", rank, name),
                    ExitCode::checkpoint);
      HeldRegion& region = entry->second.regions[list[i][3].dump()];
      if (region.holders.empty()) region.region = region_from(list[i][3], info.shape);
      region.holders.push_back({rank, i});
    }
  }
  return held;
}

// A region that one of its holders writes.
struct Chunk {
  const HeldRegion* held;
  Region region;
  std::vector<IndexRange> ranges;  // empty unless trimmed
  int64_t numel;
};

// Lists the ranges that are left of the chunk.
void trim(Chunk& chunk, std::vector<IndexRange> left, const TensorInfo& info) {
  int64_t stored = 0;
  chunk.region = Region{.sharding = Shard::replicated(info.shape)};
  for (const IndexRange& range : left) {
    chunk.region.trimmed.push_back({range.global, stored, range.length});
    stored += range.length;
  }
  chunk.ranges = std::move(left);
  chunk.numel = stored;
}

// Chunks that together hold every element once. Index ranges are computed only if regions overlap.
std::vector<Chunk> disjoint_chunks(const HeldTensor& tensor) {
  std::vector<Chunk> chunks;
  int64_t total = 0;
  bool shares = false;
  for (const auto& [text, held] : tensor.regions) {
    const int64_t numel = numel_of(held.region);
    if (numel > 0) chunks.push_back({&held, held.region, {}, numel});
    total += numel;
    shares = shares || held.region.sharding.sharers > 1;
  }
  if (!shares && total <= checked_numel(tensor.info.shape)) return chunks;
  std::vector<IndexRange> covered;
  std::vector<Chunk> disjoint;
  for (Chunk& chunk : chunks) {
    std::vector<IndexRange> rest = subtract(index_ranges(chunk.region), covered);
    if (rest.empty()) continue;
    covered = merge_disjoint(covered, rest);
    const bool whole = total_length(rest) == chunk.numel && chunk.region.sharding.sharers == 1;
    if (!whole) trim(chunk, std::move(rest), tensor.info);
    disjoint.push_back(std::move(chunk));
  }
  return disjoint;
}

// The first element that is in no chunk; "" if there is none.
std::string uncovered(const std::string& name, const TensorInfo& info, const std::vector<Chunk>& chunks) {
  std::vector<IndexRange> all;
  for (const Chunk& chunk : chunks) {
    const std::vector<IndexRange> ranges = index_ranges(chunk.region);
    all.insert(all.end(), ranges.begin(), ranges.end());
  }
  const int64_t end = covered_prefix(std::move(all));
  return end == checked_numel(info.shape) ? "" : fmt::format("{}: no rank holds element {}", name, end);
}

RankBytes encode(const std::map<int64_t, json>& lists) {
  RankBytes encoded;
  for (const auto& [rank, list] : lists) {
    const std::vector<uint8_t> bytes = json::to_cbor(list);
    encoded[rank] = {bytes.begin(), bytes.end()};
  }
  return encoded;
}

// The holders of one part, as one number that tells them from others.
uint64_t hash_holders(const std::vector<Holder>& holders) {
  Hasher hasher;
  for (const Holder& holder : holders) hasher.update(&holder.rank, sizeof(holder.rank));
  return hasher.digest();
}

// For each offer, in order: null if nothing of it is written, else who holds the same (a hash), how many they
// are, the caller's place among them and, if the part is trimmed, the pairs (global index, length) left.
struct Answers {
  RankBytes bytes;
  std::string missing;  // an element that no rank has offered, if there is one
};

Answers answer(const RankBytes& offers) {
  const std::map<std::string, HeldTensor> held = held_tensors(offers);
  std::map<int64_t, json> answers;
  std::string missing;
  for (const auto& [rank, bytes] : offers) answers[rank] = json::array();
  const auto set = [&answers](const Holder& holder, json value) {
    json& list = answers[holder.rank];
    while (list.size() <= holder.offer) list.push_back(nullptr);
    list[holder.offer] = std::move(value);
  };
  for (const auto& [name, tensor] : held) {
    for (const auto& [text, region] : tensor.regions) {
      for (const Holder& holder : region.holders) set(holder, nullptr);
    }
    const std::vector<Chunk> chunks = disjoint_chunks(tensor);
    if (missing.empty()) missing = uncovered(name, tensor.info, chunks);
    for (const Chunk& chunk : chunks) {
      const std::vector<Holder>& holders = chunk.held->holders;
      json left = json::array();
      for (const IndexRange& range : chunk.region.trimmed) left.push_back({range.global, range.length});
      const uint64_t hash = hash_holders(holders);
      for (size_t place = 0; place < holders.size(); ++place)
        set(holders[place], {hash, holders.size(), place, left});
    }
  }
  return {encode(answers), std::move(missing)};
}

// A part that this rank and others hold.
struct Share {
  SaveItem item;
  uint64_t holders = 0;  // a hash of their ranks
  size_t count = 1;      // of them
  size_t place = 0;      // of this rank among them
  int64_t bytes = 0;
};

Share share_from(const json& value, size_t source, const LocalTensor& tensor) {
  Share share{.item = {.name = tensor.name, .source = source},
              .holders = value[0],
              .count = value[1],
              .place = value[2]};
  const json offer = describe(tensor);
  const Region whole = region_from(offer[3], tensor.shard.global_shape);
  share.item.region = whole;
  share.item.ranges = index_ranges(whole);
  if (!value[3].empty()) {
    share.item.region = Region{.sharding = Shard::replicated(tensor.shard.global_shape)};
    std::vector<IndexRange> left;
    int64_t stored = 0;
    for (const json& range : value[3]) {
      share.item.region.trimmed.push_back({range[0], stored, range[1]});
      left.push_back({range[0], range[0], range[1]});
      stored += range[1].get<int64_t>();
    }
    std::vector<IndexRange> ranges;
    for (const Overlap& overlap : intersect(share.item.ranges, left))
      ranges.push_back({overlap.other, overlap.local, overlap.length});
    share.item.ranges = std::move(ranges);
  }
  share.bytes = total_length(share.item.ranges) * size_of(tensor.dtype);
  return share;
}

// The shares that this rank writes. Ranks that hold the same parts have the same list of them and divide it
// alike; each list begins with another of its ranks.
std::vector<Share> mine_of(std::vector<Share> shares) {
  const auto key = [](const Share& share) {
    const auto& ranges = share.item.ranges;
    return std::tuple(share.holders, share.place, -share.bytes, std::string_view(share.item.name),
                      ranges.empty() ? 0 : ranges.front().global);
  };
  std::sort(shares.begin(), shares.end(), [&key](const Share& a, const Share& b) { return key(a) < key(b); });
  std::vector<Share> mine;
  std::vector<int64_t> load;  // bytes, by place from the first one on
  for (size_t i = 0; i < shares.size(); ++i) {
    const Share& share = shares[i];
    const bool continues =
        i > 0 && shares[i - 1].holders == share.holders && shares[i - 1].place == share.place;
    if (!continues) load.assign(share.count, 0);
    const auto least = std::min_element(load.begin(), load.end());
    *least += share.bytes;
    const auto writer = (static_cast<size_t>(least - load.begin()) + share.holders) % share.count;
    if (writer == share.place) mine.push_back(share);
  }
  return mine;
}

// What this rank writes, by name. `sources`: by planner, the tensors that it was offered.
std::vector<SaveItem> items_of(const RankBytes& answers,
                               const std::map<int64_t, std::vector<size_t>>& sources,
                               const std::vector<LocalTensor>& tensors) {
  std::vector<Share> shares;
  for (const auto& [planner, bytes] : answers) {
    const json list = json::from_cbor(bytes);
    TERATRON_ASSERT(list.size() == sources.at(planner).size(), "{} answers", list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const size_t source = sources.at(planner)[i];
      if (!list[i].is_null()) shares.push_back(share_from(list[i], source, tensors[source]));
    }
  }
  std::vector<SaveItem> items;
  for (Share& share : mine_of(std::move(shares))) items.push_back(std::move(share.item));
  std::sort(items.begin(), items.end(), [](const SaveItem& a, const SaveItem& b) {
    return std::tie(a.name, a.source) < std::tie(b.name, b.source);
  });
  return items;
}

json list_of(const std::map<std::string, TensorInfo>& tensors) {
  json list = json::array();
  for (const auto& [name, info] : tensors) list.push_back({name, static_cast<int>(info.dtype), info.shape});
  return list;
}

void add_list(const std::string& bytes, std::map<std::string, TensorInfo>& tensors) {
  for (const json& tensor : json::from_cbor(bytes))
    tensors[tensor[0]] = {static_cast<Dtype>(tensor[1].get<int>()), tensor[2]};
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

int64_t planner_of(const std::string& name, int64_t ranks) {
  return static_cast<int64_t>(hash_text(name) % static_cast<uint64_t>(ranks));
}

// Each name reaches rank 0 once, from the rank that is responsible for it.
std::map<std::string, TensorInfo> tensors_of_all_ranks(const std::map<std::string, TensorInfo>& mine,
                                                       HostGroup& group) {
  const auto as_bytes = [](const std::map<std::string, TensorInfo>& tensors) {
    const std::vector<uint8_t> bytes = json::to_cbor(list_of(tensors));
    return std::string(bytes.begin(), bytes.end());
  };
  JointSteps steps(group, "ckpt.name_tensors");
  RankBytes told;
  steps.run([&] {
    std::map<int64_t, std::map<std::string, TensorInfo>> by_planner;
    for (const auto& [name, info] : mine) by_planner[planner_of(name, group.size())][name] = info;
    for (const auto& [planner, tensors] : by_planner) told[planner] = as_bytes(tensors);
  });
  const RankBytes heard = steps.exchange(told);
  std::string own;
  steps.run([&] {
    std::map<std::string, TensorInfo> tensors;
    for (const auto& [rank, bytes] : heard) add_list(bytes, tensors);
    own = as_bytes(tensors);
  });
  const std::string all = steps.agree(own, [&as_bytes](const std::vector<std::string>& lists) {
    std::map<std::string, TensorInfo> tensors;
    for (const std::string& bytes : lists) add_list(bytes, tensors);
    return as_bytes(tensors);
  });
  std::map<std::string, TensorInfo> everywhere;
  add_list(all, everywhere);
  return everywhere;
}

SavePlan plan_save(const std::vector<LocalTensor>& tensors, HostGroup& group) {
  JointSteps steps(group, "ckpt.plan");
  RankBytes offers;
  std::map<int64_t, std::vector<size_t>> sources;  // indices in tensors, in the order of the offers
  SavePlan plan;
  steps.run([&] {
    std::map<int64_t, json> lists;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const LocalTensor& tensor = tensors[i];
      const int64_t planner = planner_of(tensor.name, group.size());
      lists[planner].push_back(describe(tensor));
      sources[planner].push_back(i);
      plan.tensors.emplace(tensor.name, TensorInfo{tensor.dtype, tensor.shard.global_shape});
    }
    offers = encode(lists);
  });
  const RankBytes offered = steps.exchange(offers);
  Answers mine;
  steps.run([&] { mine = answer(offered); });
  const RankBytes answers = steps.exchange(mine.bytes);
  steps.run([&] { plan.items = items_of(answers, sources, tensors); });
  // Only now, since a rank that fails sends no offers.
  steps.agree(mine.missing, [](const std::vector<std::string>& missing) {
    for (const std::string& element : missing) {
      if (!element.empty()) throw Fault(element, ExitCode::checkpoint);
    }
    return "";
  });
  return plan;
}

}  // namespace teratron
