#include "teratron/train/checkpoint/model_checkpoint.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/base/tensor_dtype.h"
#include "teratron/ckpt/save_plan.h"
#include "teratron/models/family_formats.h"
#include "teratron/models/weights.h"
#include "teratron/nn/lora_options.h"
#include "teratron/settings/checkpoint_args.h"

namespace teratron {

using nlohmann::json;

namespace {

bool begins_with_any(const std::string& name, const std::vector<std::string>& beginnings) {
  return std::ranges::any_of(beginnings,
                             [&name](const std::string& beginning) { return name.starts_with(beginning); });
}

constexpr std::string_view master_prefix = "optimizer.param.";

// A training in fp32 has no master weights: its weights are that.
std::string saved_name(const StateTensor& state, const CheckpointInfo& info) {
  if (!state.name.starts_with(master_prefix) || info.tensors.contains(state.name)) return state.name;
  const std::string weight = state.name.substr(master_prefix.size());
  const auto saved = info.tensors.find(weight);
  return saved != info.tensors.end() && saved->second.dtype == Dtype::f32 ? weight : state.name;
}

void add_optimizer_states(const std::vector<StateTensor>& states, const CheckpointInfo& info,
                          HostTensors& tensors) {
  for (StateTensor state : states) {
    state.name = saved_name(state, info);
    tensors.add(state, state.type());
  }
}

// The other way round: weights in fp32 are the master weights of a training in lower precision. Reads them
// and, as no tensor of a checkpoint may be left over, the rounded weights into separate memory. Returns the
// names of these weights.
std::set<std::string> add_master_weights(ParameterSet& parameters, const CheckpointInfo& info,
                                         HostTensors& tensors) {
  std::set<std::string> names;
  for (StateTensor weight : parameter_tensors(parameters)) {
    const std::string master = std::string(master_prefix) + weight.name;
    const auto saved = info.tensors.find(weight.name);
    if (weight.type() != at::kFloat || !info.tensors.contains(master) || saved == info.tensors.end())
      continue;
    const auto type = scalar_type_of(saved->second.dtype);
    if (!type || *type == at::kFloat) continue;
    names.insert(weight.name);
    StateTensor rounded = weight;
    rounded.values = at::empty(weight.values.sizes(), at::TensorOptions().dtype(*type));
    tensors.add(rounded, *type);
    weight.name = master;
    tensors.add(weight, at::kFloat);
  }
  return names;
}

CheckpointInfo without(const CheckpointInfo& info, const std::set<std::string>& names) {
  CheckpointInfo rest = info;
  for (const std::string& name : names) rest.tensors.erase(name);
  return rest;
}

// The first of the states that the checkpoint lacks, or holds in another shape; null: none.
const StateTensor* first_missing(const CheckpointInfo& info, const std::vector<StateTensor>& states) {
  const auto missing = std::find_if(states.begin(), states.end(), [&](const StateTensor& state) {
    const auto saved = info.tensors.find(state.name);
    return saved == info.tensors.end() || saved->second.shape != state.shard.global_shape;
  });
  return missing == states.end() ? nullptr : &*missing;
}

void add_states(const std::vector<StateTensor>& states, HostTensors& tensors) {
  for (const StateTensor& state : states) tensors.add(state, state.type());
}

// All that a checkpoint holds. Forward and backward change the buffers.
std::vector<SavedTensor> saved_tensors(TrainEngine& engine, bool optimizer) {
  engine.buffers().finish_param_gather();
  std::vector<SavedTensor> all;
  const auto add = [&all](const std::vector<StateTensor>& states, bool fixed) {
    for (const StateTensor& state : states) all.push_back({state, fixed});
  };
  add(parameter_tensors(engine.parameters()), true);
  add(buffer_tensors(engine.parameters(), Buffer::Kind::model), false);
  if (!optimizer) return all;
  add(engine.optimizer().state(), true);
  add(buffer_tensors(engine.parameters(), Buffer::Kind::training), false);
  return all;
}

std::vector<LocalTensor> describe(const std::vector<SavedTensor>& tensors) {
  std::vector<LocalTensor> list;
  for (const auto& [state, fixed] : tensors) list.push_back(local_tensor(state, state.type()));
  return list;
}

bool has_optimizer(const CheckpointInfo& info) {
  const auto first = info.tensors.lower_bound("optimizer.");
  return first != info.tensors.end() && first->first.starts_with("optimizer.");
}

// Model settings of the checkpoint and of this run.
struct BothSettings {
  BothSettings(const CheckpointInfo& info, const LoadOptions& options)
      : saved(json::parse(canonical_config(info.config, info.path.string()))),
        current(json::parse(canonical_config(options.config, "this run"))) {}
  bool differ(const std::string& field) const {
    return saved.contains(field) && current.contains(field) && saved[field] != current[field];
  }
  json saved;
  json current;
};

bool other_family_is(const LoadOptions& options, const std::string& name) {
  return options.finetune && !name.empty() && options.other_family.family == name;
}

// Models of two families differ in all: one message instead of one per setting.
void check_family(const CheckpointInfo& info, const LoadOptions& options) {
  const json current = json::parse(options.config);
  if (!current.contains("model_family")) return;
  const std::string saved = saved_family(json::parse(info.config));
  if (saved == current["model_family"] || other_family_is(options, saved)) return;
  throw checkpoint_error(
      {.what = fmt::format("the checkpoint holds a model of family {}, and this run trains {}",
                           printable(saved), current["model_family"].get<std::string>()),
       .where = info.path.string(),
       .fix = fmt::format("Use `teratron pretrain {}`, or another folder", printable(saved))});
}

void check_loadable(const CheckpointInfo& info, const LoadOptions& options, const Optimizer& optimizer) {
  check_family(info, options);
  const BothSettings settings(info, options);
  std::vector<std::string> fields = fixed_model_fields(options.config, options.finetune);
  fields.insert(fields.end(), options.family_fields.begin(), options.family_fields.end());
  if (options.optimizer) fields.emplace_back("optimizer");
  std::string fix = "Use the settings of the checkpoint, or another folder";
  const std::vector<std::string> positions = resumable_overrides(options.config, true);
  if (std::ranges::any_of(fields, [&](const std::string& field) {
        return settings.differ(field) && std::ranges::find(positions, field) != positions.end();
      })) {
    fix += "; --finetune starts a new run from its weights and may change the rotary positions";
  }
  check_same_model({.path = info.path, .config = settings.saved.dump()}, settings.current.dump(), fields,
                   fix);
  const auto is_missing = [&](const StateTensor& state) {
    return !info.tensors.contains(saved_name(state, info));
  };
  if (options.optimizer && optimizer.has_state() && !has_optimizer(info) &&
      std::ranges::any_of(optimizer.state(), is_missing)) {
    throw checkpoint_error({.what = "the checkpoint holds no optimizer state",
                            .where = info.path.string(),
                            .fix = "Use --finetune to start a new run from its weights, or --no-load-optim"});
  }
}

void note_changes(const CheckpointInfo& info, const LoadOptions& options) {
  const BothSettings settings(info, options);
  for (const std::string& field : resumable_overrides(options.config, options.finetune)) {
    if (!settings.differ(field)) continue;
    notice("{} is {}, but {} in {}: {}", field, printable(settings.current[field].dump()),
           printable(settings.saved[field].dump()), printable(info.path.string(), 4096),
           field == "max_position_embeddings" ? "no weight depends on it"
                                              : "its weights are used with other rotary positions");
  }
}

}  // namespace

SavedCheckpoint save_model(TrainEngine& engine, SaveRequest request, bool optimizer) {
  const std::vector<SavedTensor> tensors = saved_tensors(engine, optimizer);
  DeviceReader reader(engine.options().device, static_cast<size_t>(request.writers));
  request.tensors = describe(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    request.tensors[i].read = [&reader, &state = tensors[i].state](int64_t begin, int64_t end) {
      return reader.read(state, begin, end);
    };
  }
  return save_checkpoint(request, *engine.mesh().world().communicator);
}

std::map<std::string, TensorInfo> saved_weights(TrainEngine& engine) {
  std::map<std::string, TensorInfo> mine;
  for (const StateTensor& state : weight_tensors(engine.parameters()))
    mine[state.name] = {dtype_of(state.type()).value(), state.shard.global_shape};
  return tensors_of_all_ranks(mine, *engine.mesh().world().communicator);
}

void prepare_save(TrainEngine& engine, bool optimizer, SnapshotMemory& memory) {
  const std::vector<SavedTensor> tensors = saved_tensors(engine, optimizer);
  const SavePlan plan = plan_save(describe(tensors), *engine.mesh().world().communicator);
  memory.reserve(Snapshot::bytes(tensors, written_tensors(plan, tensors.size())));
}

BackgroundSave save_model_async(TrainEngine& engine, SaveRequest request, bool optimizer,
                                const std::shared_ptr<SnapshotMemory>& memory) {
  std::vector<SavedTensor> tensors = saved_tensors(engine, optimizer);
  request.tensors = describe(tensors);
  const auto snapshot = std::make_shared<Snapshot>(std::move(tensors), memory);
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    request.tensors[i].read = [copy = snapshot.get(), i](int64_t begin, int64_t end) {
      return copy->read(i, begin, end);
    };
  }
  request.on_planned = [copy = snapshot.get()](const std::vector<bool>& written) { copy->start(written); };
  return {std::make_unique<AsyncSave>(request, snapshot, *engine.mesh().world().communicator), snapshot};
}

// Heads of the model whose weights in the folder are those of other classes.
static std::set<std::string> resized_heads(TrainEngine& engine, const CheckpointInfo& folder,
                                           const Finetuning& other) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : saved_weights(engine)) {
    const auto theirs = folder.tensors.find(name);
    const bool differs = theirs != folder.tensors.end() && theirs->second.shape != tensor.shape;
    if (differs && begins_with_any(name, other.starts_anew)) names.insert(name);
  }
  if (!names.empty() && engine.mesh().rank() == 0) {
    notice("the model has other classes than {}: {} begin anew", printable(folder.path.string(), 4096),
           fmt::join(names, ", "));
  }
  return names;
}

std::optional<CheckpointInfo> load_model(TrainEngine& engine, const LoadOptions& options) {
  engine.buffers().finish_param_gather();
  Communicator& peers = *engine.mesh().world().communicator;
  HostTensors tensors;
  const std::vector<StateTensor> state = buffer_tensors(engine.parameters(), Buffer::Kind::training);
  const bool keeps_state = options.optimizer || options.evaluates;
  const StateTensor* missing = nullptr;
  const Finetuning other = options.finetune ? options.other_family : Finetuning();
  std::vector<std::string> ignored = other.left_out;
  ignored.emplace_back("optimizer.");
  std::set<std::string> resized;
  if (options.source) resized = resized_heads(engine, options.source->info(), other);
  ignored.insert(ignored.end(), resized.begin(), resized.end());
  const auto select = [&](const CheckpointInfo& found) {
    check_loadable(found, options, engine.optimizer());
    tensors = HostTensors();
    std::set<std::string> from_masters, left_out = resized;
    if (options.optimizer) from_masters = add_master_weights(engine.parameters(), found, tensors);
    left_out.insert(from_masters.begin(), from_masters.end());
    // A model that adapters or a head are added to has no weights of theirs.
    add_weights(engine.parameters(), left_out.empty() ? found : without(found, left_out), tensors,
                [&](const std::string& name) {
                  return from_masters.contains(name) || (options.finetune && is_lora(name)) ||
                         begins_with_any(name, other.starts_anew);
                });
    if (options.optimizer) add_optimizer_states(engine.optimizer().state(), found, tensors);
    missing = first_missing(found, state);
    if (keeps_state && !missing) add_states(state, tensors);
    return tensors.list();
  };
  std::optional<CheckpointInfo> info;
  if (options.source) {
    load_tensors(*options.source, select(options.source->info()), ignored, peers);
    info = options.source->info();
  } else {
    info = load_checkpoint({.directory = options.directory,
                            .iteration = options.iteration,
                            .ignored = ignored,
                            .select = select,
                            .quarantine = options.own,
                            .nodes = options.nodes},
                           peers);
  }
  if (!info) return std::nullopt;
  tensors.copy_from_host();
  if (peers.rank() == 0) note_changes(*info, options);
  if (options.optimizer) {  // weights follow from the master weights
    engine.buffers().gather_params();
    engine.buffers().finish_param_gather();
  } else {
    engine.optimizer().reset_master_weights();
  }
  engine.parameters().on_loaded(keeps_state && !state.empty() && !missing);
  if (keeps_state && missing) {
    notice("{} does not hold {} as this run needs it: all state of this kind starts anew",
           info->path.string(), missing->name);
  }
  return info;
}

}  // namespace teratron
