#include "teratron/launch/launch_options.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <sys/stat.h>
#include <unistd.h>

#include "teratron/base/config/command_line.h"
#include "teratron/base/config/yaml.h"
#include "teratron/base/environment.h"
#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/base/strings.h"
#include "teratron/device/device.h"

namespace teratron {
namespace {

constexpr int kDefaultPort = 29500;  // of several machines; the same as torchrun's
constexpr int64_t kMaxRanks = 1 << 16;
constexpr int64_t kMaxPort = 65535;
constexpr size_t kSecretDigits = 64;
constexpr size_t kNameDigits = 16;

UserError invalid(std::string what, std::string where, std::string fix) {
  return config_error({.what = std::move(what), .where = std::move(where), .fix = std::move(fix)});
}

/// A value with its source: a flag, or a key and line of the file.
template <typename T>
struct Setting {
  std::optional<T> value;
  std::string name;
  std::string line = {};
  bool by_flag() const { return value && line.empty(); }
  std::string where() const { return line.empty() ? name : line; }
};

struct LaunchSettings {
  Setting<int64_t> nproc_per_node{.name = "--nproc-per-node"}, num_processes{.name = "--num-processes"},
      nnodes{.name = "--nnodes"}, node_rank{.name = "--node-rank"}, port{.name = "--master-port"};
  Setting<std::string> address{.name = "--master-addr"};
  std::optional<std::string> backend, log_directory, config_file, secret_file, port_range;
  int64_t max_restarts = 0;
  bool use_cpu = false;
  bool use_env = false, standalone = false, multi_gpu = false, use_megatron_lm = false;  // without effect
  Setting<bool> file_use_cpu = {};  // overridden by the command's --device
  Setting<std::string> file_gpus = {};
};

std::vector<Field> fields_of(LaunchSettings& settings) {
  const FieldTraits ranks = {.min = 1, .max = kMaxRanks};
  return {
      bound_field("nproc_per_node", &settings.nproc_per_node.value,
                  "Ranks on this machine; default: its GPUs, or 1", ranks),
      bound_field("num_processes", &settings.num_processes.value, "Total number of ranks (Accelerate's)",
                  ranks),
      bound_field("nnodes", &settings.nnodes.value, "Number of machines; default 1",
                  {.min = 1, .max = kMaxRanks, .aliases = "--num-machines"}),
      bound_field("node_rank", &settings.node_rank.value, "Rank of this machine, from 0",
                  {.min = 0, .max = kMaxRanks, .aliases = "--machine-rank"}),
      bound_field("master_addr", &settings.address.value,
                  "Address of machine 0, reachable from all machines; default 127.0.0.1",
                  {.aliases = "--main-process-ip"}),
      bound_field(
          "master_port", &settings.port.value,
          "Port on machine 0; default: a free one on one machine, on several the first of --port-range, "
          "or 29500",
          {.min = 0, .max = kMaxPort, .aliases = "--main-process-port"}),
      bound_field("port_range", &settings.port_range,
                  "Ports A-B on which everything of the job listens, for a firewall that leaves these open"),
      bound_field("max_restarts", &settings.max_restarts,
                  "How often to restart a job that ended with exit code 5", {.min = 0, .max = kMaxRanks}),
      bound_field("backend", &settings.backend,
                  "threads, processes, mpi or nccl; default: nccl with GPUs, otherwise processes"),
      bound_field("log_dir", &settings.log_directory,
                  "Directory of the ranks' logs; default: logs in the command's --run-dir or --save, or in "
                  "this directory"),
      bound_field("job_secret_file", &settings.secret_file,
                  "File with a secret that all machines share, mode 0600, so that ranks authenticate each "
                  "other; default: TERATRON_JOB_SECRET, or on one machine a random one"),
      bound_field("config_file", &settings.config_file, "Accelerate's config file"),
      bound_field("use_cpu", &settings.use_cpu, "Compute on CPUs even if there are GPUs",
                  {.aliases = "--cpu"}),
      bound_field("use_env", &settings.use_env, "torch.distributed.launch's; always so"),
      bound_field("standalone", &settings.standalone, "torchrun's; always so on one machine"),
      bound_field("multi_gpu", &settings.multi_gpu, "Accelerate's; always so"),
      bound_field("use_megatron_lm", &settings.use_megatron_lm, "Accelerate's; always so")};
}

/// Reads Accelerate's launcher keys. The command reads the others.
class AccelerateKeys {
 public:
  explicit AccelerateKeys(LaunchSettings& settings) : settings_(settings) {}

  void read() {
    for (const YamlEntry& entry : read_yaml(*settings_.config_file, "--config-file", problems_).entries) {
      if (entry.section.empty()) use(entry);
    }
    if (!problems_.empty()) throw UserError(ExitCode::config, std::move(problems_));
  }

 private:
  void use(const YamlEntry& entry) {
    const std::string key = canonical_name(entry.key);
    if (key == "num_processes") take(entry, settings_.num_processes, {.min = 1, .max = kMaxRanks});
    if (key == "num_machines") take(entry, settings_.nnodes, {.min = 1, .max = kMaxRanks});
    if (key == "machine_rank") take(entry, settings_.node_rank, {.min = 0, .max = kMaxRanks});
    if (key == "main_process_ip") take(entry, settings_.address);
    if (key == "main_process_port") take(entry, settings_.port, {.min = 0, .max = kMaxPort});
    if (key == "use_cpu") take(entry, settings_.file_use_cpu);
    if (key == "gpu_ids") take(entry, settings_.file_gpus);
  }

  /// Flags take precedence, then the file over its `base:` files, whose entries come first.
  template <typename T>
  void take(const YamlEntry& entry, Setting<T>& setting, const FieldTraits& limits = {}) {
    const bool overridable = !setting.by_flag();
    if (entry.null && overridable) setting.value.reset();
    if (entry.null) return;
    const Field field{.name = entry.key, .type = field_type<T>(), .traits = limits};
    Problem problem{.where = entry.value_where};
    const Value value = parse_value(field, entry.values, problem);
    if (!std::holds_alternative<T>(value)) return problems_.push_back(std::move(problem));
    if (overridable) setting = {std::get<T>(value), entry.key, entry.value_where};
  }

  LaunchSettings& settings_;
  std::vector<Problem> problems_;
};

/// The value of "--name value" or "--name=value" in a command; the last one wins.
std::optional<std::string> value_of(const std::vector<std::string>& command, const std::string& name) {
  std::optional<std::string> value;
  std::string underscored = name;
  std::replace(underscored.begin() + 2, underscored.end(), '-', '_');
  for (size_t i = 0; i < command.size(); ++i) {
    for (const std::string& flag : {name, underscored}) {
      if (command[i] == flag && i + 1 < command.size()) value = command[i + 1];
      if (command[i].starts_with(flag + "=")) value = command[i].substr(flag.size() + 1);
    }
  }
  return value;
}

/// Whether execvp() would find it.
bool is_executable(const std::string& program) {
  const auto is_file = [](const std::filesystem::path& path) {
    std::error_code ignored;
    return !std::filesystem::is_directory(path, ignored) && access(path.c_str(), X_OK) == 0;
  };
  if (program.find('/') != std::string::npos) return is_file(program);
  const std::vector<std::string> directories = split(process_environment("PATH").value_or(""), ':');
  return std::any_of(directories.begin(), directories.end(), [&](const std::string& directory) {
    return is_file(std::filesystem::path(directory) / program);
  });
}

/// The program to start: a teratron command, or another program if it contains a slash.
std::vector<std::string> command_of(std::vector<std::string> rest, const LaunchSettings& settings,
                                    const ProgramNamer& command_of_program) {
  if (!rest.empty() && rest[0] == "--") rest.erase(rest.begin());
  const bool own_program = !rest.empty() && rest[0].find('/') != std::string::npos && is_executable(rest[0]);
  if (const auto command = own_program ? std::nullopt : command_of_program(rest)) rest = *command;
  if (rest.empty()) {
    throw invalid("nothing to start", "launch",
                  "Write `teratron launch --nproc-per-node 2 -- pretrain gpt FLAGS...`");
  }
  if (rest[0].starts_with("-")) {
    throw invalid("unknown flag " + printable(rest[0], 40), "teratron launch", "See teratron launch --help");
  }
  if (rest[0].find('/') != std::string::npos) {
    if (!is_executable(rest[0])) {
      throw invalid("is not an executable program", printable(rest[0]),
                    "Correct the path; teratron commands have no slash");
    }
    if (settings.config_file && !value_of(rest, "--config-file")) {
      notice("launch uses only its own keys of {0}; for the others, pass --config-file {0} to {1} too",
             *settings.config_file, rest[0]);
    }
    return rest;
  }
  if (settings.config_file) {
    if (value_of(rest, "--config-file")) {
      throw invalid("both launch and the command have a config file", "--config-file", "Pass it once");
    }
    rest.insert(rest.end(), {"--config-file", *settings.config_file});
  }
  if (settings.use_cpu) rest.insert(rest.end(), {"--device", "cpu"});
  rest.insert(rest.begin(), std::filesystem::read_symlink("/proc/self/exe").string());
  return rest;
}

int64_t nproc_per_node(const LaunchSettings& settings, int64_t machines, int64_t otherwise) {
  const Setting<int64_t>&here = settings.nproc_per_node, &all = settings.num_processes;
  if (!all.value || (here.by_flag() && !all.by_flag())) return here.value.value_or(otherwise);
  if (*all.value % machines != 0) {
    throw invalid(fmt::format("{} = {}, {} ranks on {} machines", all.name, *all.value, *all.value, machines),
                  all.where(), "Use a multiple of the number of machines");
  }
  const int64_t share = *all.value / machines;
  if (here.value.value_or(share) == share) return share;
  throw invalid(fmt::format("{} = {} contradicts {} = {} on {} machines", here.name, *here.value, all.name,
                            *all.value, machines),
                here.where(), "Set only one of them");
}

void set_ranks(const LaunchSettings& settings, LaunchOptions& options) {
  options.nnodes = settings.nnodes.value.value_or(1);
  options.node_rank = settings.node_rank.value.value_or(0);
  if (options.node_rank >= options.nnodes) {
    throw invalid(fmt::format("{} = {} is machine {} of {}, counting from 0", settings.node_rank.name,
                              options.node_rank, options.node_rank, options.nnodes),
                  settings.node_rank.where(),
                  fmt::format("Number the machines from 0 to {}, or correct {}", options.nnodes - 1,
                              settings.nnodes.name));
  }
  const int64_t gpus = options.backend == Backend::nccl ? gpu_count() : 0;
  options.nproc_per_node = nproc_per_node(settings, options.nnodes, std::max<int64_t>(gpus, 1));
  if (options.backend == Backend::nccl && options.nproc_per_node > gpus) {
    throw invalid(fmt::format("{} ranks, but {} GPUs on this machine", options.nproc_per_node, gpus),
                  (settings.nproc_per_node.value ? settings.nproc_per_node : settings.num_processes).where(),
                  "NCCL needs one GPU per rank: start fewer ranks, or add --use-cpu");
  }
}

void notice_ignored(const LaunchSettings& settings, Backend backend) {
  const auto note = [&](const auto& setting) {
    if (setting.by_flag()) notice("{} has no effect with --backend {}", setting.name, name_of(backend));
  };
  note(settings.address);
  note(settings.port);
}

void set_rendezvous(const LaunchSettings& settings, LaunchOptions& options) {
  options.master_address = settings.address.value.value_or("127.0.0.1");
  const int64_t default_port = options.nnodes == 1 ? 0 : options.ports ? options.ports->first : kDefaultPort;
  options.master_port = static_cast<int>(settings.port.value.value_or(default_port));
  if (options.ports && options.master_port != 0)
    require_in_range(options.master_port, settings.port.where(), *options.ports);
  if (options.nnodes == 1 && options.single_process()) return notice_ignored(settings, options.backend);
  if (options.nnodes == 1) return;
  if (options.single_process()) {
    throw invalid(fmt::format("backend {} starts ranks on one machine only", name_of(options.backend)),
                  settings.nnodes.where(),
                  options.backend == Backend::mpi
                      ? "Start `mpirun ... teratron pretrain ...` yourself with your hosts"
                      : "Use --backend processes");
  }
  if (!settings.address.value) {
    throw invalid(
        fmt::format("{} = {}, but no rendezvous address", settings.nnodes.name, options.nnodes),
        settings.nnodes.where(),
        settings.nnodes.by_flag()
            ? "Set --master-addr to an address of machine 0 that all machines can reach, the same on all"
            : "Set main_process_ip to an address of machine 0 that all machines can reach, the same on all");
  }
  if (options.master_port == 0) {
    throw invalid(
        fmt::format("{} = 0 is any free port, which other machines cannot know", settings.port.name),
        settings.port.where(), "Choose a port, the same on all machines, or omit it");
  }
}

/// mpirun opens further ports, in ranges of other parameters.
std::optional<PortRange> ports_of(const LaunchSettings& settings, Backend backend) {
  const std::string variable = process_environment("TERATRON_PORT_RANGE").value_or("");
  if (!settings.port_range && variable.empty()) return std::nullopt;
  const char* const name = settings.port_range ? "--port-range" : "TERATRON_PORT_RANGE";
  const PortRange ports = parse_port_range(settings.port_range.value_or(variable), name);
  if (backend == Backend::threads) notice("{} has no effect with --backend threads: nothing listens", name);
  if (backend != Backend::mpi) return ports;
  throw invalid("Open MPI does not listen in such a range", name,
                fmt::format("Use --backend processes, or leave it out and export "
                            "OMPI_MCA_oob_tcp_dynamic_ipv4_ports={} OMPI_MCA_btl_tcp_port_min_v4={} "
                            "OMPI_MCA_btl_tcp_port_range_v4={}",
                            to_string(ports), ports.first, ports.last - ports.first + 1));
}

/// The command's flags take precedence over the file, which the command reads too.
bool computes_on_cpu(const LaunchSettings& settings, const std::vector<std::string>& command) {
  if (const auto device = value_of(command, "--device")) return device == "cpu";
  return settings.use_cpu || settings.file_use_cpu.value.value_or(false);
}

/// From the command's flags; the command validates them.
std::chrono::seconds timeout_of(const LaunchOptions& options) {
  const auto number = [&](const std::string& flag) {
    int64_t value = 0;
    const std::string text = value_of(options.command, flag).value_or("");
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  if (const int64_t seconds = number("--distributed-timeout-seconds-after-init"))
    return std::chrono::seconds(seconds);
  if (const int64_t minutes = number("--distributed-timeout-minutes")) return std::chrono::minutes(minutes);
  return options.timeout;
}

/// The first line of a file that only its user can read.
std::string read_secret(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) == 0 && (status.st_mode & 077) != 0) {
    throw invalid(fmt::format("other users can read it: its mode is {:04o}", status.st_mode & 07777), path,
                  fmt::format("chmod 600 {}", path));
  }
  std::string secret = read_text(path, {.kind = ExitCode::config, .max_bytes = size_t{1} << 16});
  secret = secret.substr(0, secret.find_first_of("\r\n"));
  if (secret.size() < kMinSecretLength || secret.find('\0') != std::string::npos) {
    throw invalid(fmt::format("its first line is not a text of {} or more characters", kMinSecretLength),
                  path, fmt::format("openssl rand -hex 32 > {}", path));
  }
  return secret;
}

/// Several machines have a secret only if the user gives one.
std::string secret_of(const LaunchSettings& settings, const LaunchOptions& options) {
  const std::string variable = process_environment("TERATRON_JOB_SECRET").value_or("");
  if (!variable.empty() && variable.size() < kMinSecretLength) {
    throw invalid(fmt::format("has {} characters, fewer than {}", variable.size(), kMinSecretLength),
                  "TERATRON_JOB_SECRET", "export TERATRON_JOB_SECRET=$(openssl rand -hex 32)");
  }
  if (!settings.secret_file) {
    return variable.empty() && options.nnodes == 1 ? random_hex(kSecretDigits) : variable;
  }
  const std::string secret = read_secret(*settings.secret_file);
  if (variable.empty() || variable == secret) return secret;
  throw invalid("TERATRON_JOB_SECRET is another secret", "--job-secret-file", "Give only one of them");
}

/// Sets CUDA_VISIBLE_DEVICES for this process, which counts GPUs, and its children.
void set_visible_gpus(const LaunchSettings& settings) {
  const std::string ids = settings.file_gpus.value.value_or("all");
  if (ids == "all") return;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible && ids != visible) {
    notice("gpu_ids has no effect: CUDA_VISIBLE_DEVICES = {} is set", printable(visible, 100));
  }
  setenv("CUDA_VISIBLE_DEVICES", ids.c_str(), /*replace=*/0);
}

Backend backend_of(const LaunchSettings& settings, bool on_cpu) {
  const auto gpus = [&] { return !on_cpu && gpu_count() > 0; };
  if (!settings.backend) return gpus() ? Backend::nccl : Backend::processes;
  const std::optional<Backend> backend = parse_backend(*settings.backend);
  if (!backend) {
    throw invalid(fmt::format("'{}' is not a backend", printable(*settings.backend, 40)), "--backend",
                  "Use one of threads, processes, mpi, nccl");
  }
  if (*backend == Backend::mpi && !is_executable("mpirun")) {
    throw invalid("mpirun is not installed", "--backend mpi", "Install Open MPI, or use --backend processes");
  }
  if (*backend == Backend::nccl && !gpus()) {
    throw invalid(
        on_cpu ? "NCCL needs GPUs, but the ranks compute on CPUs" : "NCCL needs GPUs, and none is visible",
        "--backend", "Use --backend processes, or check `teratron env`");
  }
  return *backend;
}

}  // namespace

std::optional<LaunchOptions> read_launch_options(std::span<const std::string> args,
                                                 const ProgramNamer& command_of_program) {
  LaunchSettings settings;
  const std::optional<std::vector<std::string>> command = read_command(
      {.name = "teratron launch",
       .example =
           "teratron launch --nproc-per-node 8 -- pretrain gpt --model-preset llama3-8b --mock-data --tp 8",
       .usage = "[FLAGS] -- COMMAND...",
       .summary = "Start the ranks of a job: teratron launch --nproc-per-node 2 -- pretrain gpt FLAGS...",
       .fields = fields_of(settings),
       .others = OtherArguments::command,
       .unknown_flag = "Flags of the launched command follow its name"},
      args);
  if (!command) return std::nullopt;
  if (settings.config_file) AccelerateKeys(settings).read();
  set_visible_gpus(settings);
  LaunchOptions options{.max_restarts = settings.max_restarts};
  options.command = command_of(*command, settings, command_of_program);
  options.backend = backend_of(settings, computes_on_cpu(settings, options.command));
  set_ranks(settings, options);
  options.ports = ports_of(settings, options.backend);
  set_rendezvous(settings, options);
  options.timeout = timeout_of(options);
  options.secret = secret_of(settings, options);
  options.name = random_hex(kNameDigits);
  options.save = value_of(options.command, "--save");
  if (!options.save) options.save = value_of(options.command, "--output_dir");  // run_clm's
  const std::filesystem::path folder =
      value_of(options.command, "--run-dir").value_or(options.save.value_or(""));
  options.log_directory = settings.log_directory.value_or((folder / "logs").string());
  return options;
}

}  // namespace teratron
