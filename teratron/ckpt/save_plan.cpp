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

// A part that at least one rank holds. Equal parts are one Offer with several holders.
struct Offer {
  Region region;
  std::vector<Holder> holders;
};

struct OfferedTensor {
  TensorInfo info;
  std::map<std::string, Offer> offers;  // by the text of the region, so that every rank sees one order
};

json describe(const LocalTensor& tensor) {
  const Shard& cut = tensor.shard;
  // Where the cut leaves the tensor whole, how it was written down must not matter.
  const bool whole = cut.dim < 0 || (cut.parts == 1 && cut.padded == cut.global_shape[cut.dim]);
  json region = json::array({tensor.flat_begin, flat_end_of(tensor)});
  if (!whole) region.insert(region.end(), {cut.dim, cut.segments, cut.padded, cut.parts, cut.index});
  return {tensor.name, static_cast<int>(tensor.dtype), cut.global_shape, std::move(region)};
}

Region region_from(const json& value, const std::vector<int64_t>& shape) {
  Region region{.cut = Shard::replicated(shape), .flat_begin = value[0], .flat_end = value[1], .trimmed = {}};
  if (value.size() > 2) {
    region.cut.dim = value[2];
    region.cut.segments = value[3].get<std::vector<int64_t>>();
    region.cut.padded = value[4];
    region.cut.parts = value[5];
    region.cut.index = value[6];
  }
  return region;
}

int64_t elements_of(const Region& region) {
  const Shard& cut = region.cut;
  const bool padded = cut.dim >= 0 && cut.padded != cut.global_shape[cut.dim];
  return padded ? total_length(runs_of(region)) : region.flat_end - region.flat_begin;
}

std::map<std::string, OfferedTensor> exchange(const std::vector<LocalTensor>& tensors, Peers& peers) {
  json mine = json::array();
  for (const LocalTensor& tensor : tensors) mine.push_back(describe(tensor));
  const std::vector<uint8_t> bytes = json::to_cbor(mine);
  const std::vector<std::string> all = peers.all_gather_bytes({bytes.begin(), bytes.end()});
  std::map<std::string, OfferedTensor> offered;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const json list = json::from_cbor(all[rank]);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string name = list[i][0];
      const TensorInfo info{static_cast<Dtype>(list[i][1].get<int>()), list[i][2]};
      const auto [entry, is_new] = offered.try_emplace(name, OfferedTensor{info, {}});
      TERATRON_ASSERT(is_new || entry->second.info == info, "rank {} disagrees about type or shape of {}",
                      rank, name);
      Offer& offer = entry->second.offers[list[i][3].dump()];
      if (offer.holders.empty()) offer.region = region_from(list[i][3], info.shape);
      offer.holders.push_back({static_cast<int64_t>(rank), i});
    }
  }
  return offered;
}

// Leaves every element to one offer. `runs` of an offer are only computed where the offers overlap.
struct Claim {
  const Offer* offer;
  Region region;
  std::vector<Run> runs;  // empty unless trimmed
  int64_t elements;
};

std::vector<Claim> claims_of(const OfferedTensor& tensor) {
  std::vector<Claim> claims;
  int64_t total = 0;
  for (const auto& [text, offer] : tensor.offers) {
    const int64_t elements = elements_of(offer.region);
    if (elements > 0) claims.push_back({&offer, offer.region, {}, elements});
    total += elements;
  }
  if (total <= checked_numel(tensor.info.shape)) return claims;
  std::vector<Run> covered;
  std::vector<Claim> trimmed;
  for (Claim& claim : claims) {
    std::vector<Run> rest = subtract(runs_of(claim.region), covered);
    if (rest.empty()) continue;
    covered = merge_disjoint(covered, rest);
    const int64_t left = total_length(rest);
    if (left != claim.elements) {
      int64_t stored = 0;
      claim.region = Region{.cut = Shard::replicated(tensor.info.shape)};
      for (const Run& run : rest) {
        claim.region.trimmed.push_back({run.global, stored, run.length});
        stored += run.length;
      }
      claim.runs = std::move(rest);
      claim.elements = left;
    }
    trimmed.push_back(std::move(claim));
  }
  return trimmed;
}

void check_coverage(const std::string& name, const TensorInfo& info, const std::vector<Claim>& claims) {
  std::vector<Run> all;
  for (const Claim& claim : claims) {
    const std::vector<Run> runs = runs_of(claim.region);
    all.insert(all.end(), runs.begin(), runs.end());
  }
  std::sort(all.begin(), all.end(), [](const Run& a, const Run& b) { return a.global < b.global; });
  int64_t end = 0;
  for (const Run& run : all) {
    TERATRON_ASSERT(run.global == end, "{}: no rank holds elements {} to {}", name, end, run.global);
    end = run.global + run.length;
  }
  TERATRON_ASSERT(end == checked_numel(info.shape), "{}: no rank holds the elements from {} on", name, end);
}

}  // namespace

int64_t flat_end_of(const LocalTensor& tensor) {
  return tensor.flat_end < 0 ? local_numel(tensor.shard) : tensor.flat_end;
}

SavePlan plan_save(const std::vector<LocalTensor>& tensors, Peers& peers) {
  SavePlan plan;
  std::vector<int64_t> load(peers.size(), 0);
  for (const auto& [name, offered] : exchange(tensors, peers)) {
    plan.tensors.emplace(name, offered.info);
    const std::vector<Claim> claims = claims_of(offered);
    if (peers.rank() == 0) check_coverage(name, offered.info, claims);
    for (const Claim& claim : claims) {
      const auto writer =
          std::min_element(claim.offer->holders.begin(), claim.offer->holders.end(),
                           [&load](const Holder& a, const Holder& b) { return load[a.rank] < load[b.rank]; });
      load[writer->rank] += claim.elements * size_of(offered.info.dtype);
      if (writer->rank != peers.rank()) continue;
      plan.mine.push_back(
          {name, writer->source, claim.region, claim.runs.empty() ? runs_of(claim.region) : claim.runs});
    }
  }
  return plan;
}

}  // namespace teratron
