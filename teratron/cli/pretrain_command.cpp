#include "teratron/cli/pretrain_command.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>

#include <ATen/Parallel.h>

#include "teratron/base/log.h"
#include "teratron/cli/build_info.h"
#include "teratron/cli/config_consensus.h"
#include "teratron/cli/job.h"
#include "teratron/comm/mesh/mesh.h"
#include "teratron/comm/torch_fault.h"
#include "teratron/plan/rank_memory.h"
#include "teratron/settings/mesh_settings.h"
#include "teratron/train/pretrain.h"

namespace teratron {
namespace {

/// What this process was told to do; or why it cannot.
struct Order {
  ParsedArguments parsed;
  WorldOptions world;
  std::optional<UserError> error;

  Instructions instructions() const {
    if (error) return {.error = error};
    return {.settings = to_json(parsed.args), .version = TERATRON_VERSION};
  }
};

Order read_order(std::span<const std::string> args, const Launch& launch, const Registry& registry) {
  Order order;
  try {
    order.parsed = pretrain_arguments(args, launch.size, registry);
    if (order.parsed.help) return order;
    order.world = world_options(order.parsed.args, launch);
  } catch (const UserError& error) {
    // Ranks of GPUs meet on GPUs, which one that knows of none cannot join: each tells what it sees.
    if (launch.size == 1 || launch.backend == Backend::nccl) throw;
    order.error = error;  // told once, when all ranks have met
  }
  return order;
}

/// Rank threads share the process's signal handlers. Installed when the ranks have met: until then a signal
/// simply ends the process.
class SharedSignals {
 public:
  const StopSignals& get() {
    const std::lock_guard lock(mutex_);
    if (!signals_) signals_ = std::make_unique<StopSignals>();
    return *signals_;
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<StopSignals> signals_;
};

int64_t pipeline_stage(const Arguments& args, const World& world) {
  for (const std::vector<int64_t>& pipeline : rank_groups(mesh_options(args), world.size(), {Axis::pp})) {
    const auto place = std::find(pipeline.begin(), pipeline.end(), world.rank());
    if (place != pipeline.end()) return place - pipeline.begin();
  }
  return 0;
}

ExitCode run_rank(const Order& order, World& world, const StopSignals& signals, const RankWork& work) {
  const Mesh everyone({}, world);
  const Agreement agreement = agree_on(order.instructions(), *everyone.world().communicator);
  if (!agreement.agreed) return agreement.code;
  if (world.rank() == 0) {
    for (const std::string& line : order.parsed.notices) notice_line(line);
  }
  const Arguments& args = order.parsed.args;
  if (args.num_threads) at::set_num_threads(static_cast<int>(*args.num_threads));
  const auto explained = [&](const Fault& cause) {
    return explain_out_of_memory(cause, args, pipeline_stage(args, world));
  };
  try {
    return work(order.parsed, world, signals);
  } catch (const c10::Error& error) {
    const Fault fault = to_fault(error);
    if (fault.exit_code() != ExitCode::out_of_memory) throw;
    throw explained(fault);
  } catch (const std::bad_alloc&) {
    throw explained(Fault("out of host memory", ExitCode::out_of_memory));
  }
}

}  // namespace

int run_job(std::span<const std::string> args, const Registry& registry, const RankWork& work) {
  const Launch launch = read_launch(process_environment);
  const Order order = read_order(args, launch, registry);
  if (order.parsed.help) {
    print_line(arguments_help("teratron pretrain gpt [FLAGS]", registry.fields));
    return 0;
  }
  SharedSignals signals;
  std::atomic<int> code = 0;
  run_world(launch, order.world,
            [&](World& world) { code = static_cast<int>(run_rank(order, world, signals.get(), work)); });
  return code;
}

int pretrain_command(std::span<const std::string> args, const Registry& registry) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) {
    print_line(arguments_help("teratron pretrain gpt [FLAGS]", registry.fields));
    return 0;
  }
  if (args.empty() || args[0] != "gpt") {
    throw config_error(
        {.what = args.empty() ? "no model was named" : fmt::format("'{}' is no model", printable(args[0])),
         .where = "pretrain",
         .fix = "Write `teratron pretrain gpt FLAGS...`"});
  }
  return run_job(args.subspan(1), registry,
                 [&](const ParsedArguments& parsed, World& world, const StopSignals& signals) {
                   return pretrain(parsed, world, signals, registry);
                 });
}

}  // namespace teratron
