#include "teratron/megatron/optimizer/flat_optimizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/megatron/optimizer/optimizer_groups.h"
#include "teratron/optim/rules/adam_states.h"

namespace teratron {

namespace {

using Kind = PickleValue::Kind;

// Buckets follow each other in the buffer, each from its own start.
struct Bucket {
  std::map<std::string, TensorSourcePtr> states;
  int64_t size = 0;
};

Bucket bucket_of(const std::shared_ptr<const TorchFile>& file,
                 const std::map<std::string, PickledTensor>& parts, const std::string& where) {
  Bucket bucket;
  for (const auto& [name, tensor] : parts) {
    bucket.states[name] = tensor_of_file(file, tensor);
    const int64_t size = numel(tensor);
    if (bucket.size != 0 && size != bucket.size) refuse_optimizer("its buffers have different sizes", where);
    bucket.size = size;
  }
  return bucket;
}

// {"param": tensor, ...}, {"param": [tensor of each bucket], ...} or [{"param": tensor...} of each bucket].
std::vector<Bucket> buckets_of(const PickleValue& value, const std::shared_ptr<const TorchFile>& file,
                               const std::string& where) {
  std::vector<std::map<std::string, PickledTensor>> parts;
  const auto add = [&](size_t bucket, const std::string& name, const PickleValue& tensor) {
    if (!tensor.is(Kind::tensor)) refuse_optimizer("a buffer is not a tensor", where);
    if (parts.size() <= bucket) parts.resize(bucket + 1);
    parts[bucket][name] = tensor.tensor();
  };
  std::vector<std::string> names = {"param"};
  for (const RuleState& state : adam_states) names.emplace_back(state.name);
  for (const std::string& name : names) {
    if (value.is(Kind::list)) {
      for (size_t i = 0; i < value.items().size(); ++i) {
        if (const PickleValue* const tensor = value.items()[i]->find(name)) add(i, name, *tensor);
      }
      continue;
    }
    const PickleValue* const found = value.find(name);
    if (found == nullptr) refuse_optimizer(fmt::format("it has no '{}'", name), where);
    if (found->is(Kind::tensor)) add(0, name, *found);
    for (size_t i = 0; found->is(Kind::list) && i < found->items().size(); ++i)
      add(i, name, *found->items()[i]);
  }
  std::vector<Bucket> buckets;
  for (const auto& part : parts) buckets.push_back(bucket_of(file, part, where));
  return buckets;
}

// The buffer of a virtual stage: the value for its number, then the value for its only dtype.
const PickleValue& buffer_of(const PickleValue& root, size_t stage, const std::string& where) {
  for (size_t i = 0; i + 1 < root.items().size(); i += 2) {
    if (!root.items()[i]->is(Kind::integer) || root.items()[i]->integer() != static_cast<int64_t>(stage))
      continue;
    const PickleValue& dtypes = *root.items()[i + 1];
    if (!dtypes.is(Kind::dict) || dtypes.items().size() != 2)
      refuse_optimizer("it has buffers of several dtypes", where);
    return *dtypes.items()[1];
  }
  refuse_optimizer(fmt::format("it has no buffer of virtual stage {}", stage), where);
}

// Parameters begin at multiples of `alignment` (64 since core 0.8).
bool place_parameters(const std::vector<SavedParameter>& parameters, const std::vector<Bucket>& buckets,
                      int64_t alignment, std::vector<ParameterState>& states) {
  size_t bucket = 0;
  int64_t at = 0;
  states.assign(parameters.size(), {});
  for (size_t i = parameters.size(); i-- > 0;) {
    const int64_t size = numel(parameters[i]);
    at = (at + alignment - 1) / alignment * alignment;
    while (bucket < buckets.size() && size > buckets[bucket].size - at) ++bucket, at = 0;
    if (bucket == buckets.size()) return false;
    for (const auto& [name, source] : buckets[bucket].states)
      states[i][name] = slice_of(source, at, parameters[i].shape);
    at += size;
  }
  return bucket + 1 == buckets.size();
}

bool agree_with_weights(const std::vector<SavedParameter>& parameters,
                        const std::vector<ParameterState>& states) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!agrees(parameters[i], states[i])) return false;
  }
  return true;
}

using ShardParts = std::map<std::string, std::vector<TensorSourcePtr>>;  // by name of the state, by rank

// The parts that one rank's file has, added to those of the ranks before it.
class DataParallelFile {
 public:
  DataParallelFile(std::shared_ptr<const TorchFile> file, std::string where)
      : file_(std::move(file)), where_(std::move(where)), adam_(adam_of(file_->root())) {
    if (!adam_) refuse_optimizer("a data-parallel rank has none", where_);
  }

  void add(const std::vector<ParameterShard>& shards, const StageParameters& stages,
           std::vector<std::vector<ShardParts>>& parts) const {
    std::vector<ParameterPlace> places;
    for (const ParameterShard& shard : shards) places.push_back(shard.place);
    const auto groups = divide_into_groups(kinds_of_groups(*adam_.groups), places, stages);
    const auto table = states_by_number(*adam_.state, shards.size(), where_);
    size_t number = 0;
    for (size_t group = 0; group < groups.size(); ++group) {
      for (size_t i = 0; i < groups[group].size(); ++i, ++number) {
        const ParameterPlace place = groups[group][i];
        const auto shard = std::ranges::find(shards, place, &ParameterShard::place);
        ShardParts& target = parts[place.stage][place.number];
        const int64_t size = shard->end - shard->begin;
        if (number >= table.size()) refuse_optimizer("its groups have other sizes", where_);
        for (const auto& [name, type] : adam_states)
          target[std::string(name)].push_back(tensor(table[number]->find(name), size));
        if (const PickleValue* const weights = master(group, i))
          target["param"].push_back(tensor(weights, size));
      }
    }
    if (number != shards.size()) refuse_optimizer("its groups have other sizes", where_);
  }

 private:
  TensorSourcePtr tensor(const PickleValue* value, int64_t size) const {
    if (value == nullptr || !value->is(Kind::tensor) || numel(value->tensor()) != size)
      refuse_optimizer(fmt::format("a part of it has not {} elements", size), where_);
    return tensor_of_file(file_, value->tensor());
  }
  const PickleValue* master(size_t group, size_t number) const {
    const PickleValue* const groups = adam_.outer->find("shard_fp32_from_float16_groups");
    if (groups == nullptr || group >= groups->items().size() ||
        number >= groups->items()[group]->items().size())
      return nullptr;
    return groups->items()[group]->items()[number];
  }

  std::shared_ptr<const TorchFile> file_;
  std::string where_;
  AdamDict adam_;
};

}  // namespace

std::vector<std::vector<ParameterState>> read_flat_states(
    const std::shared_ptr<const TorchFile>& file,
    const std::vector<std::vector<SavedParameter>>& virtual_stages, const std::string& where) {
  std::vector<std::vector<ParameterState>> result(virtual_stages.size());
  for (size_t stage = 0; stage < virtual_stages.size(); ++stage) {
    const std::vector<Bucket> buckets = buckets_of(buffer_of(file->root(), stage, where), file, where);
    const bool placed = std::ranges::any_of(std::array{1, 64}, [&](int64_t alignment) {
      return place_parameters(virtual_stages[stage], buckets, alignment, result[stage]) &&
             agree_with_weights(virtual_stages[stage], result[stage]);
    });
    if (!placed) refuse_optimizer("its buffers are not those of its parameters, last one first", where);
  }
  return result;
}

std::vector<std::vector<ParameterState>> read_sharded_states(
    const std::vector<std::shared_ptr<const TorchFile>>& files,
    const std::vector<std::vector<SavedParameter>>& virtual_stages, const std::string& where) {
  std::vector<std::vector<ParameterState>> result(virtual_stages.size());
  if (const AdamDict adam = adam_of(files[0]->root()); !adam || adam.state->items().empty()) return {};
  std::vector<std::vector<ShardParts>> parts;
  for (const auto& stage : virtual_stages) parts.emplace_back(stage.size());
  const StageParameters parameters = parameters_of(virtual_stages);
  for (size_t rank = 0; rank < files.size(); ++rank) {
    const auto shards =
        shards_of_rank(parameters, static_cast<int64_t>(rank), static_cast<int64_t>(files.size()));
    DataParallelFile(files[rank], where).add(shards, parameters, parts);
  }
  for (size_t stage = 0; stage < virtual_stages.size(); ++stage) {
    result[stage].resize(virtual_stages[stage].size());
    for (size_t i = 0; i < result[stage].size(); ++i) {
      for (auto& [name, of_ranks] : parts[stage][i])
        result[stage][i][name] = concatenated(std::move(of_ranks), virtual_stages[stage][i].shape);
    }
    if (!agree_with_weights(virtual_stages[stage], result[stage]))
      refuse_optimizer("its fp32 weights are not those of the model", where);
  }
  return result;
}

}  // namespace teratron
