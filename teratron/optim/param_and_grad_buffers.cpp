// ParamAndGradBuffers: which parameters share a buffer, and who holds the same tensors.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "teratron/base/error.h"
#include "teratron/optim/param_and_grad_buffer.h"

namespace teratron {

namespace {

using Entry = ParamAndGradBuffer::Entry;
using Entries = std::vector<Entry>;

// What the parameters of a buffer have in common.
struct BufferKey {
  at::ScalarType dtype;
  AxisSet axes;
  auto operator<=>(const BufferKey&) const = default;
};

BufferKey key_of(const Parameter& parameter) {
  return {parameter.tensor.scalar_type(), parameter.options.replicated_over};
}

// Of all ranks: each takes part in sums over the model.
std::set<BufferKey> all_keys(const ParameterSet& parameters, HostGroup& world) {
  std::ostringstream mine;
  for (const Parameter& parameter : parameters.all()) {
    const auto [dtype, axes] = key_of(parameter);
    if (parameter.options.trainable) mine << static_cast<int>(dtype) << ' ' << axes.bits() << ' ';
  }
  std::set<BufferKey> keys;
  for (const std::string& text : world.all_gather_bytes(mine.str())) {
    std::istringstream words(text);
    int dtype = 0;
    uint32_t axes = 0;
    while (words >> dtype >> axes)
      keys.insert({static_cast<at::ScalarType>(dtype), AxisSet::from_bits(axes)});
  }
  return keys;
}

// Axes that span the same ranks, as {dp} and {dp, cp} without context parallelism, make one buffer.
std::map<BufferKey, BufferKey> merge_equal_groups(const std::set<BufferKey>& keys, const Mesh& mesh) {
  std::map<BufferKey, BufferKey> merged;
  for (const BufferKey& key : keys) {
    merged[key] = *std::find_if(keys.begin(), keys.end(), [&](const BufferKey& first) {
      return first.dtype == key.dtype && mesh.group(first.axes).ranks == mesh.group(key.axes).ranks;
    });
  }
  return merged;
}

// By key, each in order of registration; none for keys of other ranks.
std::map<BufferKey, Entries> make_entries(ParameterSet& parameters, const Mesh& mesh,
                                          const std::vector<int64_t>& chunks) {
  const std::map<BufferKey, BufferKey> merged =
      merge_equal_groups(all_keys(parameters, *mesh.world().communicator), mesh);
  std::map<BufferKey, Entries> entries;
  for (const auto& [_, key] : merged) entries[key];
  int64_t position = 0, chunk = 0, left = chunks.empty() ? -1 : chunks[0];
  for (Parameter& parameter : parameters.all()) {
    while (left == 0) left = chunks.at(++chunk);
    --left;
    if (!parameter.options.trainable) continue;
    entries.at(merged.at(key_of(parameter)))
        .push_back({.parameter = &parameter, .position = position++, .chunk = chunk});
  }
  return entries;
}

std::string part_name(const Parameter& parameter) {
  return fmt::format("{} {}", parameter.shard().index, parameter.name);
}

// Compares the entries with those of ranks outside the replicas: sets `counts` and `tied`.
void find_holders(Entries& entries, AxisSet axes, const Mesh& mesh) {
  const Group& others = mesh.group(complement(axes));
  if (others.size == 1) return;
  std::string mine = fmt::format("{}\n", mesh.group(Axis::pp).rank);
  for (const Entry& entry : entries) mine += part_name(*entry.parameter) + '\n';
  struct Holders {
    int64_t first = 0;
    std::set<int64_t> stages;
    Group tied = {};
  };
  std::map<std::string, Holders> holders;
  const std::vector<std::string> lists = others.communicator->all_gather_bytes(mine);
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    std::istringstream lines(lists[rank]);
    std::string line;
    std::getline(lines, line);
    const int64_t stage = std::stoll(line);
    while (std::getline(lines, line)) {
      const auto found = holders.try_emplace(line, Holders{.first = static_cast<int64_t>(rank)}).first;
      found->second.stages.insert(stage);
    }
  }
  // In the order of names, equal on all ranks.
  const int64_t my_stage = mesh.group(Axis::pp).rank;
  for (auto& [_, part] : holders) {
    if (part.stages.size() > 1 && part.stages.contains(my_stage))
      part.tied = mesh.stage_group({part.stages.begin(), part.stages.end()});
  }
  for (Entry& entry : entries) {
    const Holders& part = holders.at(part_name(*entry.parameter));
    entry.counts = part.first == others.rank;
    entry.tied = part.tied;
  }
}

}  // namespace

ParamAndGradBuffers::ParamAndGradBuffers(ParameterSet& parameters, const Mesh& mesh,
                                         const ParamAndGradBuffer::Options& options,
                                         const std::vector<int64_t>& chunks) {
  std::map<BufferKey, Entries> all = make_entries(parameters, mesh, chunks);
  if (all.empty()) {
    throw config_error({.what = "the model has no trainable parameters",
                        .where = "the model",
                        .fix = "Leave some of its parameters trainable"});
  }
  for (auto& [key, entries] : all) {
    find_holders(entries, key.axes, mesh);
    const Group& group = mesh.group(key.axes);
    const double share = static_cast<double>(group.size) / static_cast<double>(mesh.replicas().size);
    buffers_.emplace_back(std::move(entries),
                          ParamAndGradBuffer::Replicas{.axes = key.axes, .group = group, .share = share},
                          at::TensorOptions().dtype(key.dtype).device(parameters.options().device), options);
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
