#include "teratron/comm/launch_env.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr std::array<std::pair<Backend, const char*>, 4> kBackends = {{{Backend::threads, "threads"},
                                                                       {Backend::processes, "processes"},
                                                                       {Backend::mpi, "mpi"},
                                                                       {Backend::nccl, "nccl"}}};

struct Variables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr std::array<Variables, 4> kLaunchers = {{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    // A batch script has SLURM_PROCID too, but is not a task of a step and has no number of tasks.
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
}};

class LaunchEnvReader {
 public:
  explicit LaunchEnvReader(const Environment& environment) : environment_(environment) {}

  LaunchEnv read() {
    const auto* const launcher =
        std::find_if(kLaunchers.begin(), kLaunchers.end(), [&](const Variables& variables) {
          return environment_(variables.size) && environment_(variables.rank);
        });
    if (launcher != kLaunchers.end()) {
      read_ranks(*launcher);
    } else {
      reject_unpaired("WORLD_SIZE", "1", "RANK");
      reject_unpaired("RANK", "0", "WORLD_SIZE");
    }
    if (const auto backend = environment_("TERATRON_BACKEND")) {
      env_.backend = parse_backend(*backend);
      if (!env_.backend) throw invalid("TERATRON_BACKEND", *backend, "one of threads, processes, mpi, nccl");
    }
    return env_;
  }

 private:
  /// RANK or WORLD_SIZE without the other is accepted only with its value in a job of one rank.
  void reject_unpaired(const char* name, const char* single_value, const char* other) const {
    const std::string value = environment_(name).value_or("");
    if (value.empty() || value == single_value) return;
    throw config_error(
        {.what = fmt::format("{} = '{}' is set, but {} is not", name, printable(value, 40), other),
         .where = "environment",
         .fix = fmt::format(
             "Set both for each process (RANK counts from 0), unset {} for a single-rank job, or start "
             "the job with `teratron launch`",
             name)});
  }

  static UserError invalid(const char* name, const std::string& value, const std::string& expected) {
    return config_error({.what = fmt::format("{} = '{}' is not {}", name, printable(value, 40), expected),
                         .where = "environment",
                         .fix = "Correct the variable, or start the job with `teratron launch`"});
  }

  int64_t number(const char* name, int64_t max) const {
    const std::string text = environment_(name).value_or("");
    int64_t value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > max) {
      throw invalid(name, text, fmt::format("a number from 0 to {}", max));
    }
    return value;
  }

  void read_ranks(const Variables& variables) {
    env_.size = number(variables.size, 1 << 20);
    if (env_.size == 0) throw invalid(variables.size, "0", "a positive number of ranks");
    env_.rank = number(variables.rank, env_.size - 1);
    env_.local_rank = environment_(variables.local_rank) ? number(variables.local_rank, 1 << 16) : env_.rank;
    env_.local_size =
        environment_(variables.local_size) ? number(variables.local_size, env_.size) : env_.size;
    env_.local_size = std::max<int64_t>(env_.local_size, 1);
    const std::string_view launcher = variables.launcher;
    env_.mpi = environment_("OMPI_COMM_WORLD_SIZE") || (launcher == "srun" && environment_("PMIX_RANK"));
    if (launcher == "srun") read_slurm_rendezvous();
    // A single node: any of its addresses will do.
    if (launcher == "mpirun" &&
        environment_("OMPI_COMM_WORLD_LOCAL_SIZE") == environment_("OMPI_COMM_WORLD_SIZE")) {
      env_.master_address = "127.0.0.1";
    }
    if (const auto address = environment_("MASTER_ADDR")) env_.master_address = *address;
    if (environment_("MASTER_PORT")) env_.master_port = static_cast<int>(number("MASTER_PORT", 65535));
    env_.agent_store = environment_("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
    if (environment_("TERATRON_STORE_LISTENER")) {
      env_.store_listen_fd = static_cast<int>(number("TERATRON_STORE_LISTENER", 1 << 20));
    }
    if (const auto attempt = environment_("TORCHELASTIC_RESTART_COUNT")) env_.attempt = *attempt;
    if (const auto ports = environment_("TERATRON_PORT_RANGE"))
      env_.ports = parse_port_range(*ports, "TERATRON_PORT_RANGE");
    read_interface();
    read_secret();
  }

  /// NCCL's variable holds beginnings of names, the others names.
  void read_interface() {
    for (const char* const variable :
         {"TERATRON_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
      const std::string names = environment_(variable).value_or("");
      if (names.empty()) continue;
      const bool is_nccl = variable == std::string_view("NCCL_SOCKET_IFNAME");
      env_.interface = is_nccl ? names : "=" + names;
      env_.interface_variable = variable;
      return;
    }
  }

  void read_secret() {
    env_.secret = environment_("TERATRON_JOB_SECRET").value_or("");
    if (env_.secret.empty() || env_.secret.size() >= kMinSecretLength) return;
    throw config_error(
        {.what = fmt::format("TERATRON_JOB_SECRET has {} characters, fewer than {}", env_.secret.size(),
                             kMinSecretLength),
         .where = "environment",
         .fix =
             "Set the same random text for all ranks: export TERATRON_JOB_SECRET=$(openssl rand -hex 32)"});
  }

  /// The node of task 0, and a port that two jobs on one node rarely share.
  void read_slurm_rendezvous() {
    if (const auto nodes = environment_("SLURM_STEP_NODELIST")) env_.master_address = first_host(*nodes);
    if (environment_("SLURM_JOB_ID")) {
      env_.master_port = static_cast<int>(20000 + number("SLURM_JOB_ID", int64_t{1} << 40) % 10000);
    }
  }

  const Environment& environment_;
  LaunchEnv env_;
};

}  // namespace

std::string name_of(Backend backend) {
  return kBackends[static_cast<size_t>(backend)].second;
}

std::optional<Backend> parse_backend(const std::string& name) {
  for (const auto& [backend, text] : kBackends) {
    if (name == text) return backend;
  }
  return std::nullopt;
}

LaunchEnv read_launch_env(const Environment& environment) {
  return LaunchEnvReader(environment).read();
}

int64_t share_of_cores(const LaunchEnv& env, int64_t cores) {
  return std::max<int64_t>(1, cores / env.local_size);
}

std::string first_host(const std::string& list) {
  const size_t end = list.find_first_of(",[");
  if (end == std::string::npos || list[end] == ',') return list.substr(0, end);
  const size_t number_end = list.find_first_of(",-]", end);
  const size_t close = list.find(']', end);
  if (number_end == std::string::npos || close == std::string::npos) return list;
  const size_t after = list.find(',', close);
  return list.substr(0, end) + list.substr(end + 1, number_end - end - 1) +
         list.substr(close + 1, after - close - 1);
}

}  // namespace teratron
