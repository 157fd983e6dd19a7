#include "teratron/generate/loaded_model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/log.h"
#include "teratron/base/tensor_dtype.h"
#include "teratron/generate/model_ranks.h"
#include "teratron/hf/hf_checkpoint.h"
#include "teratron/hf/peft.h"
#include "teratron/megatron/load_source.h"
#include "teratron/models/family_formats.h"
#include "teratron/models/weights.h"
#include "teratron/settings/checkpoint_args.h"
#include "teratron/settings/checks/formula.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

// Keys that the trainer saves next to the settings.
struct SavedModel {
  std::string family;
  int64_t vocabulary = 0;  // the tokenizer's size
};

SavedModel saved_model(const CheckpointInfo& info, const Arguments& args) {
  const nlohmann::json config = nlohmann::json::parse(info.config);
  SavedModel saved{.family = saved_family(config), .vocabulary = args.vocab_size.value_or(0)};
  const auto vocabulary = config.find("tokenizer_vocab_size");  // an imported one has only the other
  if (vocabulary != config.end())
    saved.vocabulary = vocabulary->is_number_integer() ? int64_t{*vocabulary} : 0;
  if (saved.vocabulary > 0) return saved;
  throw checkpoint_error({.what = "the checkpoint has neither tokenizer_vocab_size nor vocab_size",
                          .where = info.path.string(),
                          .fix = "Use a checkpoint that `teratron pretrain` or `teratron ckpt` wrote"});
}

// What the user gave of what the number of ranks follows from.
std::string flag_of_ranks(const DividedSize& size, const Sources& given) {
  const auto found =
      std::ranges::find_if(size.settings, [&](const std::string& name) { return given.contains(name); });
  return flag_of(found == size.settings.end() ? size.settings.front() : *found);
}

// The shapes of the shards are derived from these.
void check_divisible(const Arguments& args, const Sources& given) {
  std::vector<Problem> problems;
  for (const DividedSize& size : divided_sizes(args)) {
    if (size.fits()) continue;
    problems.push_back(
        {fmt::format("{} = {} is not divisible by {} = {}", size.name, size.value, size.by, size.divisor),
         flag_of_ranks(size, given), fmt::format("Use one of {}", divisors_text(size.value))});
  }
  if (args.expert_model_parallel_size > 1 && !args.num_experts)
    problems.push_back({"the model has no experts", "--expert-model-parallel-size", "Leave it out"});
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

// The weights fit the checkpoint's model alone. Training compares the same settings.
void reject_other_model(const ParsedArguments& given, const nlohmann::json& merged,
                        const CheckpointInfo& checkpoint) {
  const std::string path = checkpoint.path.string();
  std::vector<std::string> unknown;
  const std::string all = to_json(arguments_from_json(checkpoint.config, path, &unknown));
  const nlohmann::json saved = nlohmann::json::parse(canonical_config(all, path));
  const nlohmann::json current = nlohmann::json::parse(canonical_config(merged.dump(), path));
  std::vector<Problem> problems;
  for (const std::string& field : fixed_model_fields(merged.dump(), /*finetune=*/false)) {
    const auto source = given.sources.find(field);
    if (source == given.sources.end() || !current.contains(field)) continue;
    const nlohmann::json of_checkpoint = saved.value(field, nlohmann::json());
    if (current[field] == of_checkpoint) continue;
    problems.push_back(
        {.what = fmt::format("{} is {}, but {} in the checkpoint {}", field, printable(current[field].dump()),
                             printable(of_checkpoint.dump()), printable(path, 4096)),
         .where = source->second,
         .fix = "Leave it out: the model is the checkpoint's"});
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

// The settings of the checkpoint, overridden by those that the user gave.
Arguments merge_settings(const ParsedArguments& given, const CheckpointInfo& checkpoint) {
  nlohmann::json merged = nlohmann::json::parse(checkpoint.config);
  const nlohmann::json current = nlohmann::json::parse(to_json(given.args));
  for (const auto& [name, source] : given.sources) {
    const Field& field = arguments_schema().field(name);
    if (field.model || is_for(field, given.program.names)) merged[name] = current.at(name);
  }
  reject_other_model(given, merged, checkpoint);
  // The run that saved it had another layout and other paths.
  for (const char* field : {"tensor_model_parallel_size",
                            "pipeline_model_parallel_size",
                            "sequence_parallel",
                            "num_layers_per_virtual_pipeline_stage",
                            "num_virtual_stages_per_pipeline_rank",
                            "decoder_first_pipeline_num_layers",
                            "decoder_last_pipeline_num_layers",
                            "account_for_embedding_in_pipeline_split",
                            "account_for_loss_in_pipeline_split",
                            "pipeline_model_parallel_layout",
                            "pipeline_model_parallel_split_rank",
                            "context_parallel_size",
                            "cp_comm_type",
                            "expert_model_parallel_size",
                            "expert_tensor_parallel_size",
                            "padded_vocab_size",
                            "load",
                            "save",
                            "run_dir",
                            "tensorboard_dir",
                            "seed"}) {
    merged[field] = current.at(field);
  }
  merged["recompute_granularity"] = nullptr;  // there is no backward
  std::vector<std::string> unknown;
  return arguments_from_json(merged.dump(), checkpoint.path.string(), &unknown);
}

// As training does. Settings that do not define the model are not said here.
void print_ignored(const ParsedArguments& given, const Arguments& args) {
  for (const IgnoredSetting& ignored : ignored_settings(args, given.sources)) {
    const auto source = given.sources.find(ignored.name);
    if (source == given.sources.end() || !is_users(source->second)) continue;
    const Field& field = arguments_schema().field(ignored.name);
    if (field.model)
      notice("{} has no effect {}", flag_for(field, get_value(field, &given.args)), ignored.why);
  }
}

void check_context_parallel_model(Arguments& args, const Family& family, const Mesh& mesh) {
  const int64_t size = args.context_parallel_size;
  if (size == 1) return;
  if (mesh.group(Axis::cp).size != size) {
    throw config_error(
        {.what = fmt::format("context_parallel_size = {}, but only training and `teratron logits` cut "
                             "sequences over ranks",
                             size),
         .where = "--context-parallel-size",
         .fix = "Leave it out"});
  }
  Sources sources;
  std::vector<std::string> notices;
  Validation validation{args, sources, notices};
  check_context_parallel(validation);
  if (family.check) family.check(args, validation.problems);
  if (!validation.problems.empty()) throw UserError(ExitCode::config, std::move(validation.problems));
}

// Texts are filled up to a length that can be cut, of which only causal attention takes no notice.
void check_cuts_texts(const Arguments& args, const Family& family, const ModelPlan& plan) {
  if (args.context_parallel_size == 1 || (family.generates && !plan.source)) return;
  throw config_error({.what = fmt::format("context_parallel_size = {}, but sequences of '{}' are cut over "
                                          "ranks in training alone",
                                          args.context_parallel_size, family.name),
                      .where = "--context-parallel-size",
                      .fix = "Leave it out"});
}

[[noreturn]] void reject_family(const Family& family, std::span<const Family> more,
                                const std::filesystem::path& checkpoint) {
  std::vector<std::string_view> others;
  for (const std::span<const Family> list : {more, families()}) {
    for (const Family& other : list) {
      if (other.generates) others.push_back(other.name);
    }
  }
  throw config_error({.what = fmt::format("models of family {} do not generate text", family.name),
                      .where = checkpoint.string(),
                      .fix = fmt::format("Use a model of one of {}", fmt::join(others, ", "))});
}

InferencePipeline pipeline_of(const Arguments& args, const ModelPlan& plan, const Mesh& mesh) {
  const Group& group = mesh.group(Axis::pp);
  if (group.size == 1) return {.chunks = {{.layers = plan.layers()}}};
  if (plan.towers.size() > 1 && !plan.split && !args.pipeline_model_parallel_layout) {
    throw config_error({.what = "the pipeline has several stages, but the decoder's first is not given",
                        .where = "--pipeline-model-parallel-split-rank",
                        .fix = "Give the number of stages of the encoder"});
  }
  return {.chunks = pipeline_layout(args, plan).chunks_of_stage(group.rank),
          .group = group,
          .links = mesh.pipeline_links()};
}

SharedManifest find_given(const Arguments& args, HostGroup& world) {
  if (!args.load)
    throw config_error({.what = "no model is given",
                        .where = "--load",
                        .fix = "Set --load DIR, or --hf with a Hugging Face folder"});
  std::optional<SharedManifest> found = find_manifest(*args.load, args.ckpt_step, world);
  if (found) return std::move(*found);
  reject_hf_folder(*args.load);
  throw checkpoint_error(
      {.what = "no checkpoint found", .where = *args.load, .fix = "Use the directory that --save wrote"});
}

// Where the weights are: a checkpoint of ours, whose manifest the ranks share, a Hugging Face folder, or a
// checkpoint of Megatron-LM.
struct ModelFiles {
  ModelFiles(const ParsedArguments& given, HostGroup& world) {
    const Arguments& args = given.args;
    if (args.hf) {
      foreign = open_hf(*args.hf, world);
    } else if (args.load) {
      foreign = open_megatron_source(import_for({.path = *args.load, .step = args.ckpt_step}, given), world);
    }
    if (!foreign) saved.emplace(find_given(args, world));
  }
  const CheckpointInfo& info() const { return foreign ? foreign->info() : saved->info(); }

  std::unique_ptr<CheckpointSource> foreign;
  std::optional<SharedManifest> saved;
};

LoraAdapters given_adapters(const std::string& folder, const CheckpointInfo& info) {
  return read_peft(folder, read_peft_config(folder), hf_tensors(hf_model_of(info), info.tensors.size()));
}

void load_without_adapters(ParameterSet& parameters, const ModelFiles& files, HostGroup& world) {
  if (files.foreign) return load_weights(parameters, *files.foreign, world);
  load_weights(parameters, *files.saved, world);
}

// Reads this rank's weights, and the adapters beside them.
std::unique_ptr<CheckpointReader> reader_of(const SharedManifest& saved, ParameterSet& parameters,
                                            HostGroup& world) {
  std::vector<LocalTensor> parts = weight_parts(parameters);
  for (LocalTensor& part : adapter_parts(saved.info())) parts.push_back(std::move(part));
  return std::make_unique<CheckpointReader>(saved, parts, world);
}

// Adapters are merged into the weights as they are read: those of --lora, or of the checkpoint.
void load_all(const Arguments& given, ParameterSet& parameters, const ModelFiles& files, HostGroup& world) {
  const bool has_own = files.saved && !adapter_parts(files.info()).empty();
  if (!given.lora && !has_own) return load_without_adapters(parameters, files, world);
  const auto own = files.saved ? reader_of(*files.saved, parameters, world) : nullptr;
  const CheckpointSource& source = own ? static_cast<const CheckpointSource&>(*own) : *files.foreign;
  LoraAdapters adapters;
  run_on_all_ranks(world, [&] {
    adapters = given.lora ? given_adapters(*given.lora, files.info()) : saved_adapters(source);
  });
  if (adapters.empty()) return load_without_adapters(parameters, files, world);
  load_weights(parameters, MergedLora(source, std::move(adapters)), world);
}

struct AdapterBase {
  const ModelFiles& files;
  const ModelPlan& plan;
  const InferenceRanks& ranks;
  LoadedModel& loaded;
  HostGroup& world;
};

// Reads the weights that the adapters change, merged with them.
void load_changed(LoadedAdapter& adapter, const LoraAdapters& changes, const AdapterBase& base) {
  const auto own = base.files.saved ? reader_of(*base.files.saved, *adapter.parameters, base.world) : nullptr;
  const CheckpointSource& source = own ? static_cast<const CheckpointSource&>(*own) : *base.files.foreign;
  constexpr std::string_view end = ".weight";
  const auto changes_weight = [&](const std::string& name) {
    return name.ends_with(end) && changes.contains(name.substr(0, name.size() - end.size()));
  };
  HostTensors tensors;
  for (Parameter& parameter : adapter.parameters->all()) {
    if (changes_weight(parameter.name)) parameter.tensor = parameter.tensor.clone();
  }
  for (const StateTensor& state : weight_tensors(*adapter.parameters)) {
    if (!changes_weight(state.name)) continue;
    const auto saved = source.info().tensors.find(state.name);
    const bool is_known = saved != source.info().tensors.end();
    tensors.add(state, is_known ? scalar_type_of(saved->second.dtype).value_or(state.type()) : state.type());
  }
  std::vector<std::string> others;
  for (const auto& [name, tensor] : source.info().tensors) {
    if (!changes_weight(name)) others.push_back(name);
  }
  load_tensors(MergedLora(source, changes), tensors.list(), others, base.world);
  tensors.copy_from_host();
}

LoadedAdapter load_adapter(const NamedAdapter& named, const AdapterBase& base) {
  const ParameterSet::Options& options = base.loaded.parameters->options();
  LoadedAdapter adapter{.name = named.name,
                        .parameters = std::make_unique<ParameterSet>(ParameterSet::Options{
                            .dtype = options.dtype, .device = options.device, .seed = 0, .aliases = true}),
                        .model = {}};
  adapter.model = language_model(base.plan, *adapter.parameters, base.ranks);
  adapter.parameters->alias(*base.loaded.parameters);
  LoraAdapters changes;
  run_on_all_ranks(base.world, [&] { changes = given_adapters(named.folder, base.files.info()); });
  load_changed(adapter, changes, base);
  adapter.parameters->on_loaded(/*training_state=*/false);
  return adapter;
}

// Weights that other adapters changed could not be shared.
void check_adapters(const Arguments& given, const ModelFiles& files, const InferenceOptions& options) {
  if (options.adapters.empty()) return;
  const bool has_own = files.saved && !adapter_parts(files.info()).empty();
  if (!given.lora && !has_own) return;
  throw config_error(
      {.what = has_own ? "the checkpoint has adapters, beside which no others can be loaded"
                       : "adapters are given with and without a name",
       .where = "--lora",
       .fix = has_own ? "Merge them first: teratron ckpt merge-lora" : "Give each a name: --lora NAME=DIR"});
}

}  // namespace

InferenceRanks inference_ranks(const Arguments& args, const ModelPlan& plan, const Mesh& mesh) {
  return {.tensor_parallel = mesh.group(Axis::tp),
          .pipeline = pipeline_of(args, plan, mesh),
          .mesh = mesh,
          .copies = ModelRanks(mesh).copies};
}

LoadedModel load_for_inference(const ParsedArguments& given, const InferenceOptions& options,
                               const Mesh& mesh) {
  if (given.args.load && given.args.hf) {
    throw config_error({.what = "load and hf are both set, and each names a model",
                        .where = "--hf",
                        .fix = "Set only one of them"});
  }
  Communicator& world = *mesh.world().communicator;
  const ModelFiles files(given, world);
  check_adapters(given.args, files, options);
  LoadedModel loaded{.checkpoint = files.info()};
  loaded.args = merge_settings(given, loaded.checkpoint);
  if (world.rank() == 0) print_ignored(given, loaded.args);
  const Group& tp = mesh.group(Axis::tp);
  loaded.args.tensor_model_parallel_size = tp.size;
  loaded.args.pipeline_model_parallel_size = mesh.group(Axis::pp).size;
  loaded.args.expert_model_parallel_size = mesh.group(Axis::ep).size;
  loaded.args.expert_tensor_parallel_size = mesh.group(Axis::etp).size;
  const SavedModel saved = saved_model(loaded.checkpoint, loaded.args);
  check_divisible(loaded.args, given.sources);
  loaded.parameters = std::make_unique<ParameterSet>(
      ParameterSet::Options{.dtype = options.dtype, .device = options.device, .seed = 0});
  const Family& family = find_saved_family(saved.family, options.families);
  if (options.generates && !family.generates) reject_family(family, options.families, loaded.checkpoint.path);
  read_family_settings(family, loaded.checkpoint.config, loaded.checkpoint.path.string());
  check_context_parallel_model(loaded.args, family, mesh);
  const ModelPlan plan = family.plan(loaded.args, saved.vocabulary);
  check_cuts_texts(loaded.args, family, plan);
  const InferenceRanks ranks = inference_ranks(loaded.args, plan, mesh);
  loaded.model = language_model(plan, *loaded.parameters, ranks);
  loaded.model.context_parallel = mesh.group(Axis::cp);
  load_all(given.args, *loaded.parameters, files, world);
  for (const NamedAdapter& each : options.adapters)
    loaded.adapters.push_back(load_adapter(each, {files, plan, ranks, loaded, world}));
  return loaded;
}

}  // namespace teratron
