#include "teratron/cli/run_job.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "teratron/base/background_log.h"
#include "teratron/base/log.h"
#include "teratron/cli/build_info.h"
#include "teratron/cli/config_consensus.h"
#include "teratron/cli/resume_advice.h"
#include "teratron/cli/training_arguments.h"
#include "teratron/comm/collective_errors.h"
#include "teratron/comm/torch_fault.h"
#include "teratron/device/device.h"
#include "teratron/plan/rank_memory.h"
#include "teratron/settings/component_options.h"
#include "teratron/settings/own_run.h"
#include "teratron/train/engine/engine_options.h"
#include "teratron/train/registry.h"

namespace teratron {
namespace {

using nlohmann::json;

/// Ends a rank whose GPU does not return: nothing that could block runs first.
void exit_immediately(const Fault& fault) {
  error_line(fault.what());
  flush_log();
  _exit(static_cast<int>(fault.exit_code()));
}

/// Ends a process that does not come to the end of its step after a signal: see exit_immediately().
void exit_unanswered(int signal) {
  error_line(fmt::format(
      "signal {} was not answered: no step or save ended, as where ranks wait for one that is stuck, "
      "for a disk or for a GPU. Nothing was saved after it; start again to go on from the "
      "last checkpoint, if there is one.",
      signal));
  flush_log();
  _exit(128 + signal);
}

WorldOptions world_options(const Arguments& args, const LaunchEnv& launch) {
  WorldOptions options{.timeout = std::chrono::minutes(args.distributed_timeout_minutes)};
  if (args.distributed_timeout_seconds_after_init) {
    options.timeout_after_start = std::chrono::seconds(*args.distributed_timeout_seconds_after_init);
  }
  if (choose_device(args).is_cuda()) {
    options.gpu = static_cast<int>(launch.local_rank % gpu_count());
    options.on_hang = exit_immediately;
  }
  return options;
}

/// The settings of this process, or the error in its command line.
struct JobSpec {
  const JobModel& model;
  ParsedArguments parsed = {};
  WorldOptions world = {};
  std::optional<UserError> error = {};
  bool is_finished = true;  // false: a checkpoint has the rest, which one rank reads

  RankConfig rank_config() const {
    if (error) return {.error = error};
    return {.settings = to_json(parsed.args),
            .version = TERATRON_VERSION,
            .loads_elsewhere = loads_elsewhere(parsed.args)};
  }
};

JobSpec make_job_spec(std::span<const std::string> args, const LaunchEnv& launch, const JobModel& model) {
  JobSpec spec{model};
  try {
    spec.parsed = flag_arguments(args, model);
    if (spec.parsed.help) return spec;
    // What is wrong with flags alone is reported with the rest, before ranks of NCCL meet.
    spec.is_finished =
        launch.size == 1 || !wants_saved_settings(spec.parsed.args) || !spec.parsed.problems.empty();
    if (spec.is_finished)
      finish_arguments(spec.parsed, settings_to_start_with(spec.parsed), launch.size, model);
    spec.world = world_options(spec.parsed.args, launch);
  } catch (const UserError& error) {
    // NCCL ranks rendezvous on GPUs, which a rank without valid settings cannot join: each rank reports its
    // own error.
    if (launch.size == 1 || launch.backend == Backend::nccl) throw;
    spec.error = error;  // reported once, after the rendezvous
  }
  return spec;
}

/// Rank 0's, as bytes.
std::string saved_settings(const JobSpec& spec) {
  if (spec.is_finished) return "";
  const std::optional<SavedSettings> saved = settings_to_start_with(spec.parsed);
  if (!saved) return "";
  const std::vector<uint8_t> bytes = json::to_cbor(json::array({saved->path, saved->config}));
  return {bytes.begin(), bytes.end()};
}

/// Finishes the settings with those that rank 0 reads in a checkpoint. All ranks call it, since one may have
/// been started with other flags, which is reported later.
void finish(JobSpec& spec, HostGroup& group) {
  try {
    const std::string bytes = run_on_rank_0(group, [&spec] { return saved_settings(spec); });
    if (spec.is_finished) return;
    std::optional<SavedSettings> saved;
    if (!bytes.empty()) {
      const json both = json::from_cbor(bytes);
      saved = {.path = both[0], .config = both[1]};
    }
    finish_arguments(spec.parsed, saved, group.size(), spec.model);
  } catch (const UserError& error) {
    spec.error = error;
  }
}

/// The signal handlers of the process, shared by its rank threads. Installed after the rendezvous: before, a
/// signal simply ends the process.
class SharedSignals {
 public:
  const StopSignals& get() {
    const std::lock_guard lock(mutex_);
    if (signals_) return *signals_;
    signals_ = std::make_unique<StopSignals>();
    signals_->end_unanswered(exit_unanswered);
    return *signals_;
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<StopSignals> signals_;
};

int64_t pipeline_stage(const Arguments& args, const World& world) {
  for (const std::vector<int64_t>& pipeline : rank_groups(mesh_options(args), world.size(), {Axis::pp})) {
    const auto found = std::find(pipeline.begin(), pipeline.end(), world.rank());
    if (found != pipeline.end()) return found - pipeline.begin();
  }
  return 0;
}

ExitCode run_rank(JobSpec spec, World& world, const StopSignals& signals, const RankFunction& work) {
  const Mesh all_ranks({}, world);
  finish(spec, *all_ranks.world().communicator);
  const ExitCode consensus = check_config_consensus(spec.rank_config(), *all_ranks.world().communicator);
  if (consensus != ExitCode::ok) return consensus;
  if (world.rank() == 0) {
    for (const std::string& line : spec.parsed.notices) notice_line(line);
  }
  const Arguments& args = spec.parsed.args;
  if (args.num_threads) at::set_num_threads(static_cast<int>(*args.num_threads));
  try {
    return work(spec.parsed, world, signals);
  } catch (const Fault&) {
    throw;
  } catch (const std::exception& error) {
    const Fault fault = to_fault(error);
    if (fault.exit_code() != ExitCode::out_of_memory) throw;
    throw explain_out_of_memory(fault, spec.model.family, args, pipeline_stage(args, world));
  }
}

}  // namespace

int run_job(std::span<const std::string> args, const JobModel& model, const RankFunction& work) {
  const LaunchEnv launch = read_launch_env(process_environment);
  const JobSpec spec = make_job_spec(args, launch, model);
  if (spec.parsed.help) {
    print_line(training_help(fmt::format("pretrain {}", model.family.name), model));
    return 0;
  }
  const bool has_folder = spec.parsed.args.save || spec.parsed.args.run_dir;
  log_in_background(has_folder ? "metrics.jsonl in the folder of the run has every iteration" : "");
  SharedSignals signals;
  std::atomic<int> code = 0;
  // `teratron launch` does it for its ranks.
  const bool advises = launch.rank == 0 && !process_environment("TERATRON_JOB_NAME");
  try {
    run_world(launch, spec.world,
              [&](World& world) { code = static_cast<int>(run_rank(spec, world, signals.get(), work)); });
  } catch (const Fault&) {
    if (advises) print_resume_advice(spec.parsed.args.save);
    throw;
  }
  if (advises && code == static_cast<int>(ExitCode::stopped)) print_resume_advice(spec.parsed.args.save);
  return code;
}

namespace {

std::string ranks_text(int64_t ranks) {
  return ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks);
}

// Sizes of the ranks beside those of a stage.
struct OtherRanks {
  int64_t pp = 1, cp = 1;
};

// The ranks of a stage: those of dense layers and of experts.
struct StageRanks {
  int64_t tp = 1, ep = 1, etp = 1;
  int64_t size() const { return std::max(tp, ep * etp); }
};

bool divides_experts(const Arguments& args) {
  return args.expert_model_parallel_size > 1 || args.expert_tensor_parallel_size;
}

// Experts take the tensor-parallel ranks, or as many more as they need.
StageRanks stage_ranks(const Arguments& args, int64_t tp) {
  if (!divides_experts(args)) return {.tp = tp, .etp = tp};
  constexpr int64_t most = int64_t{1} << 30;  // so that products fit
  const int64_t ep = std::min(args.expert_model_parallel_size, most);
  const int64_t etp =
      std::min(args.expert_tensor_parallel_size.value_or(std::max<int64_t>(1, tp / ep)), most);
  if (std::max(tp, ep * etp) % std::min(tp, ep * etp) == 0) return {.tp = tp, .ep = ep, .etp = etp};
  throw config_error(
      {.what = fmt::format("expert_model_parallel_size = {} x expert_tensor_parallel_size = {} and "
                           "tensor_model_parallel_size = {} do not divide each other",
                           ep, etp, tp),
       .where = "--expert-model-parallel-size",
       .fix = "Use sizes of which one is a multiple of the other"});
}

void check_stage(const StageRanks& stage, int64_t ranks, const OtherRanks& others) {
  if (others.cp > 1 && stage.ep * stage.etp > stage.tp) {
    throw config_error(
        {.what = fmt::format("expert_model_parallel_size = {} x expert_tensor_parallel_size = {} are more "
                             "than tensor_model_parallel_size = {}, but context-parallel ranks have "
                             "different tokens",
                             stage.ep, stage.etp, stage.tp),
         .where = "--expert-model-parallel-size",
         .fix = "Divide experts over the tensor-parallel ranks, or leave --context-parallel-size out"});
  }
  if (stage.size() == ranks) return;
  const int64_t needed = stage.size() * others.pp * others.cp;
  throw config_error(
      {.what = fmt::format("tensor_model_parallel_size = {} and expert_model_parallel_size = {} x "
                           "expert_tensor_parallel_size = {} take {}, but {} {}",
                           stage.tp, stage.ep, stage.etp, ranks_text(stage.size()),
                           others.pp > 1 ? "a stage has" : "there are", ranks),
       .where = "--expert-model-parallel-size",
       .fix = fmt::format("Start {} with `teratron launch --nproc-per-node {} -- ...`, or change the sizes",
                          ranks_text(needed), needed)});
}

MeshOptions inference_mesh(const StageRanks& stage, const OtherRanks& others) {
  return {.tp = stage.tp, .pp = others.pp, .cp = others.cp, .ep = stage.ep, .etp = stage.etp};
}

void run_model(const ParsedArguments& parsed, const OtherRanks& others,
               const std::function<void(const Mesh&)>& body) {
  const LaunchEnv launch = read_launch_env(process_environment);
  const int64_t size = parsed.args.tensor_model_parallel_size, stages = others.pp * others.cp;
  if (launch.size % stages != 0) {
    const bool context = others.cp > 1, pipeline = others.pp > 1;
    throw config_error(
        {.what = fmt::format("{}{}{} = {} does not divide the {} of the job",
                             pipeline ? "pipeline_model_parallel_size" : "", pipeline && context ? " * " : "",
                             context ? "context_parallel_size" : "", stages, ranks_text(launch.size)),
         .where = context ? "--context-parallel-size" : "--pipeline-model-parallel-size",
         .fix = fmt::format("Start {} ranks, or a multiple", stages)});
  }
  const int64_t rest = launch.size / stages;
  const bool given = parsed.sources.contains("tensor_model_parallel_size");
  if (given && size != rest && !divides_experts(parsed.args)) {
    throw config_error(
        {.what = fmt::format("tensor_model_parallel_size = {}, but the job has {} ranks{}", size, launch.size,
                             others.pp > 1   ? fmt::format(" for {} stages", stages)
                             : others.cp > 1 ? fmt::format(", {} of them context-parallel", stages)
                                             : ""),
         .where = "--tensor-model-parallel-size",
         .fix = fmt::format("Start {} with `teratron launch --nproc-per-node {} -- ...`",
                            size * stages == 1 ? "one rank" : "as many ranks", size * stages)});
  }
  const StageRanks stage = stage_ranks(parsed.args, given ? size : rest);
  check_stage(stage, rest, others);
  run_world(launch, world_options(parsed.args, launch),
            [&](World& world) { body(Mesh(inference_mesh(stage, others), world)); });
}

}  // namespace

void run_model_parallel(const ParsedArguments& parsed, const std::function<void(const Mesh&)>& body) {
  run_model(parsed, {.pp = parsed.args.pipeline_model_parallel_size}, body);
}

void run_context_parallel(const ParsedArguments& parsed, const std::function<void(const Mesh&)>& body) {
  run_model(parsed, {parsed.args.pipeline_model_parallel_size, parsed.args.context_parallel_size}, body);
}

void run_replicas(const ParsedArguments& parsed, const std::function<void(const Mesh&)>& body) {
  const LaunchEnv launch = read_launch_env(process_environment);
  const Arguments& args = parsed.args;
  const int64_t tp = args.tensor_model_parallel_size, pp = args.pipeline_model_parallel_size;
  const StageRanks stage = stage_ranks(args, tp);
  if (stage.size() > launch.size / pp || launch.size % (stage.size() * pp) != 0) {
    const bool experts = stage.size() > tp;
    throw config_error(
        {.what = fmt::format("{} x pipeline_model_parallel_size = {} does not divide the {} of the job",
                             experts ? fmt::format("expert_model_parallel_size = {} x "
                                                   "expert_tensor_parallel_size = {}",
                                                   stage.ep, stage.etp)
                                     : fmt::format("tensor_model_parallel_size = {}", tp),
                             pp, ranks_text(launch.size)),
         .where = experts  ? "--expert-model-parallel-size"
                  : tp > 1 ? "--tensor-model-parallel-size"
                           : "--pipeline-model-parallel-size",
         .fix = "Start a multiple of their product with `teratron launch --nproc-per-node N -- ...`"});
  }
  run_world(launch, world_options(args, launch),
            [&](World& world) { body(Mesh(inference_mesh(stage, {.pp = pp}), world)); });
}

}  // namespace teratron
