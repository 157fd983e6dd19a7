// ParamAndGradBuffers: which parameters share a buffer, and who holds the same tensors.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/base/tensor_dtype.h"
#include "teratron/comm/consensus.h"
#include "teratron/optim/param_and_grad_buffer.h"
#include "teratron/optim/replica_agreement.h"

namespace teratron {

namespace {

using Entry = ParamAndGradBuffer::Entry;
using Entries = std::vector<Entry>;

// What the parameters of a buffer have in common.
struct BufferKey {
  at::ScalarType dtype;
  AxisSet axes;
  size_t rule;
  auto operator<=>(const BufferKey&) const = default;
};

BufferKey key_of(const Parameter& parameter, const OptimizerRules& rules) {
  return {parameter.tensor.scalar_type(), parameter.options.replicated_over, rule_of(rules, parameter)};
}

// The keys of all ranks: each takes part in sums over the model.
std::set<BufferKey> all_keys(const ParameterSet& parameters, const OptimizerRules& rules, HostGroup& world) {
  std::set<std::string> mine;
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.options.trainable) continue;
    const auto [dtype, axes, rule] = key_of(parameter, rules);
    mine.insert(fmt::format("{} {} {}", static_cast<int>(dtype), axes.bits(), rule));
  }
  std::set<BufferKey> keys;
  for (const std::string& text : union_of(world, mine)) {
    std::istringstream words(text);
    int dtype = 0;
    uint32_t axes = 0;
    size_t rule = 0;
    words >> dtype >> axes >> rule;
    keys.insert({static_cast<at::ScalarType>(dtype), AxisSet::from_bits(axes), rule});
  }
  return keys;
}

// Axes that span the same ranks, as {dp} and {dp, cp} without context parallelism, make one buffer.
std::map<BufferKey, BufferKey> merge_equal_groups(const std::set<BufferKey>& keys, const Mesh& mesh) {
  std::map<BufferKey, BufferKey> merged;
  for (const BufferKey& key : keys) {
    merged[key] = *std::find_if(keys.begin(), keys.end(), [&](const BufferKey& first) {
      return first.dtype == key.dtype && first.rule == key.rule &&
             mesh.group(first.axes).ranks == mesh.group(key.axes).ranks;
    });
  }
  return merged;
}

Group sharers_of(const Parameter& parameter, const Mesh& mesh) {
  const int64_t sharers = parameter.shard().sharers;
  return sharers == 1 ? Group() : mesh.neighbours(Axis::tp, sharers);
}

// By key, each in order of registration; none for keys of other ranks.
std::map<BufferKey, Entries> make_entries(ParameterSet& parameters, const Mesh& mesh,
                                          const std::vector<int64_t>& chunks, const OptimizerRules& rules) {
  const std::map<BufferKey, BufferKey> merged =
      merge_equal_groups(all_keys(parameters, rules, *mesh.world().communicator), mesh);
  std::map<BufferKey, Entries> entries;
  for (const auto& [_, key] : merged) entries[key];
  int64_t position = 0, chunk = 0, left = chunks.empty() ? -1 : chunks[0];
  for (Parameter& parameter : parameters.all()) {
    while (left == 0) left = chunks.at(++chunk);
    --left;
    if (!parameter.options.trainable) continue;
    entries.at(merged.at(key_of(parameter, rules)))
        .push_back({.parameter = &parameter,
                    .position = position++,
                    .chunk = chunk,
                    .sharers = sharers_of(parameter, mesh)});
  }
  return entries;
}

HeldTensor held(const Parameter& parameter) {
  return {.name = fmt::format("{} {}", parameter.shard().index, parameter.name),
          .form = fmt::format("[{}] {}", fmt::join(parameter.tensor.sizes(), ", "),
                              spelling_of(parameter.tensor.scalar_type()))};
}

// Compares the entries with those of ranks outside the replicas: sets `counts` and `tied`. Returns what is
// wrong with tied ones.
std::string set_holders(const std::vector<Entry*>& entries, AxisSet axes, const Mesh& mesh) {
  const AxisSet others = complement(axes);
  if (mesh.group(others).size == 1) return "";
  std::vector<HeldTensor> mine;
  for (const Entry* entry : entries) mine.push_back(held(*entry->parameter));
  const HolderPlace here{.rank = mesh.rank(),
                         .stage = mesh.group(Axis::pp).rank,
                         .pipeline = mesh.group(others - Axis::pp).rank};
  const FoundHolders found = find_holders(*mesh.group(others).communicator, here, mine);
  std::map<std::string, size_t> tied;  // in the same order on all stages
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i]->counts = found.of[i].first;
    if (found.of[i].stages.size() > 1) tied[mine[i].name] = i;
  }
  for (const auto& [_, i] : tied) {
    const std::set<int64_t>& stages = found.of[i].stages;
    entries[i]->tied = mesh.stage_group({stages.begin(), stages.end()});
  }
  return found.problem;
}

// A tensor may be tied to one of another dtype, which is an error. So all buffers of the same replicas are
// compared together.
std::string set_holders(std::map<BufferKey, Entries>& buffers, const Mesh& mesh) {
  std::map<AxisSet, std::vector<Entry*>> by_axes;
  for (auto& [key, entries] : buffers) {
    const RankList& ranks = mesh.group(key.axes).ranks;
    const auto same = std::find_if(by_axes.begin(), by_axes.end(),
                                   [&](const auto& other) { return mesh.group(other.first).ranks == ranks; });
    std::vector<Entry*>& all = same == by_axes.end() ? by_axes[key.axes] : same->second;
    for (Entry& entry : entries) all.push_back(&entry);
  }
  std::string problem;
  for (const auto& [axes, entries] : by_axes) {
    const std::string found = set_holders(entries, axes, mesh);
    if (problem.empty()) problem = found;
  }
  return problem;
}

// The first buffer whose buckets differ among its replicas; empty: none.
std::string find_different_buckets(const std::map<BufferKey, Entries>& buffers, const Mesh& mesh,
                                   const ParamAndGradBuffer::Options& options, const OptimizerRules& rules) {
  std::string problem;
  for (const auto& [key, entries] : buffers) {
    const Group& group = mesh.group(key.axes);
    if (group.size == 1) continue;
    const std::string found = find_different_bucket(
        *group.communicator, mesh.rank(),
        ParamAndGradBuffer::describe_buckets(entries, group.size, options, *rules[key.rule].rule));
    if (problem.empty()) problem = found;
  }
  return problem;
}

// Throws on all ranks if one has found something.
void check_agreement(const std::string& of_tied, const std::string& of_buckets, const Mesh& mesh) {
  HostGroup& world = *mesh.world().communicator;
  if (const std::string tied = first_nonempty(world, of_tied); !tied.empty()) {
    throw config_error({.what = "ranks hold tensors of one name that differ: " + tied,
                        .where = "the model",
                        .fix = "Give tensors that ranks share one shape and one dtype, or different names"});
  }
  if (const std::string bucket = first_nonempty(world, of_buckets); !bucket.empty()) {
    throw config_error({.what = "ranks that sum gradients have different parameters: " + bucket,
                        .where = "the model",
                        .fix = "Create the same parameters on all replicas, whatever a rank computes"});
  }
}

}  // namespace

ParamAndGradBuffers::ParamAndGradBuffers(ParameterSet& parameters, const Mesh& mesh,
                                         const ParamAndGradBuffer::Options& options,
                                         const std::vector<int64_t>& chunks, const OptimizerRules& rules) {
  std::map<BufferKey, Entries> all = make_entries(parameters, mesh, chunks, rules);
  if (all.empty()) {
    throw config_error({.what = "the model has no trainable parameters",
                        .where = "the model",
                        .fix = "Leave some of its parameters trainable"});
  }
  const std::string of_tied = set_holders(all, mesh);
  check_agreement(of_tied, find_different_buckets(all, mesh, options, rules), mesh);
  for (auto& [key, entries] : all) {
    const Group& group = mesh.group(key.axes);
    const double share = static_cast<double>(group.size) / static_cast<double>(mesh.replicas().size);
    buffers_.emplace_back(std::move(entries),
                          ParamAndGradBuffer::Replicas{.axes = key.axes, .group = group, .share = share},
                          at::TensorOptions().dtype(key.dtype).device(parameters.options().device), options,
                          rules[key.rule].rule);
  }
  set_reduction_order();
}

// Ranks may use different parameters in a step, so the order must not follow from theirs: it is that of a
// backward through all layers. Reductions over stages wait for the last backward, on which other stages
// depend.
void ParamAndGradBuffers::set_reduction_order() {
  struct Next {
    bool over_stages;
    int64_t position;
    ParamAndGradBuffer* buffer;
  };
  std::vector<Next> all;
  for (ParamAndGradBuffer& buffer : buffers_) {
    const bool over_stages = buffer.replicas().axes.contains(Axis::pp);
    for (const int64_t position : buffer.last_positions()) all.push_back({over_stages, position, &buffer});
    buffer.set_on_complete([this] { start_reductions(/*incomplete=*/false); });
  }
  std::stable_sort(all.begin(), all.end(), [](const Next& a, const Next& b) {
    return a.over_stages != b.over_stages ? b.over_stages : a.position > b.position;
  });
  for (const Next& next : all) {
    order_.push_back(next.buffer);
    early_ += next.over_stages ? 0 : 1;
  }
}

void ParamAndGradBuffers::start_reductions(bool incomplete) {
  const size_t end = incomplete ? order_.size() : early_;
  while (started_ < end && order_[started_]->start_next_reduction(incomplete)) ++started_;
}

void ParamAndGradBuffers::zero_grad() {
  started_ = 0;
  for (ParamAndGradBuffer& buffer : buffers_) buffer.zero_grad();
}

void ParamAndGradBuffers::set_last_microbatch(int64_t chunk) {
  for (ParamAndGradBuffer& buffer : buffers_) buffer.set_last_microbatch(chunk);
}

void ParamAndGradBuffers::finish_grad_sync() {
  start_reductions(/*incomplete=*/true);
  for (ParamAndGradBuffer& buffer : buffers_) buffer.finish_grad_sync();
}

void ParamAndGradBuffers::gather_params() {
  for (ParamAndGradBuffer& buffer : buffers_) buffer.gather_params();
}

void ParamAndGradBuffers::finish_param_gather() {
  for (ParamAndGradBuffer& buffer : buffers_) buffer.finish_param_gather();
}

}  // namespace teratron
