#include "teratron/launch/launch_options.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "teratron/base/config/command_line.h"
#include "teratron/base/config/config.h"
#include "teratron/base/config/yaml.h"
#include "teratron/base/environment.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/base/words.h"
#include "teratron/train/device/device.h"

namespace teratron {
namespace {

constexpr int kDefaultPort = 29500;  // where several machines meet unless told otherwise; torchrun's
constexpr int64_t kMostRanks = 1 << 16;
constexpr int64_t kMostPort = 65535;

UserError wrong(std::string what, std::string where, std::string fix) {
  return config_error({.what = std::move(what), .where = std::move(where), .fix = std::move(fix)});
}

/// A value, the name that the user gave it by (a flag, or a key of the file) and where the file says so.
template <typename T>
struct Choice {
  std::optional<T> value;
  std::string name;
  std::string line = {};
  bool by_flag() const { return value && line.empty(); }
  std::string where() const { return line.empty() ? name : line; }
};

struct Given {
  Choice<int64_t> ranks_here{.name = "--nproc-per-node"}, ranks{.name = "--num-processes"},
      machines{.name = "--nnodes"}, machine{.name = "--node-rank"}, port{.name = "--master-port"};
  Choice<std::string> address{.name = "--master-addr"};
  std::optional<std::string> backend, log_directory, config_file;
  int64_t max_restarts = 0;
  bool use_cpu = false;
  Choice<bool> file_use_cpu = {};  // which the command's --device overrides
  Choice<std::string> file_gpus = {};
};

/// "--node-rank,--node_rank" and the same for every other spelling.
std::string flags(std::initializer_list<std::string> names) {
  std::string all;
  for (std::string name : names) {
    all += (all.empty() ? "--" : ",--") + name;
    if (name.find('-') == std::string::npos) continue;
    std::replace(name.begin(), name.end(), '-', '_');
    all += ",--" + name;
  }
  return all;
}

void declare(CLI::App& app, Given& given) {
  const CLI::Range ranks(int64_t{1}, kMostRanks);
  app.add_option(flags({"nproc-per-node"}), given.ranks_here.value,
                 "Ranks on this machine; default: its GPUs, or 1")
      ->check(ranks);
  app.add_option(flags({"num-processes"}), given.ranks.value, "Ranks on all machines together (Accelerate's)")
      ->check(ranks);
  app.add_option(flags({"nnodes", "num-machines"}), given.machines.value, "Machines; default 1")
      ->check(ranks);
  app.add_option(flags({"node-rank", "machine-rank"}), given.machine.value, "Number of this machine, from 0")
      ->check(CLI::Range(int64_t{0}, kMostRanks));
  app.add_option(flags({"master-addr", "main-process-ip"}), given.address.value,
                 "Address of machine 0 that all machines reach; default 127.0.0.1");
  app.add_option(flags({"master-port", "main-process-port"}), given.port.value,
                 "Port on it; default: a free one on one machine, 29500 on several")
      ->check(CLI::Range(int64_t{0}, kMostPort));
  app.add_option(flags({"max-restarts"}), given.max_restarts,
                 "How often a job that ended with exit code 5 starts again")
      ->check(CLI::Range(int64_t{0}, kMostRanks));
  app.add_option("--backend", given.backend,
                 "threads, processes, mpi or nccl; default: nccl where there are GPUs, otherwise processes");
  app.add_option(flags({"log-dir"}), given.log_directory,
                 "Folder of the ranks' logs; default: logs in the command's --run-dir or --save, or here");
  app.add_option(flags({"config-file"}), given.config_file, "Accelerate's configuration");
  app.add_flag(flags({"use-cpu", "cpu"}), given.use_cpu, "Compute on CPUs even if there are GPUs");
}

/// Accelerate's launcher keys, where no flag says otherwise. The rest of the file is the command's matter.
class AccelerateKeys {
 public:
  explicit AccelerateKeys(Given& given) : given_(given) {}

  void read() {
    for (const YamlEntry& entry : read_yaml(*given_.config_file, "--config-file", problems_)) {
      if (entry.section.empty()) use(entry);
    }
    if (!problems_.empty()) throw UserError(ExitCode::config, std::move(problems_));
  }

 private:
  void use(const YamlEntry& entry) {
    const std::string key = canonical_name(entry.key);
    if (key == "num_processes") take(entry, given_.ranks, {.min = 1, .max = kMostRanks});
    if (key == "num_machines") take(entry, given_.machines, {.min = 1, .max = kMostRanks});
    if (key == "machine_rank") take(entry, given_.machine, {.min = 0, .max = kMostRanks});
    if (key == "main_process_ip") take(entry, given_.address);
    if (key == "main_process_port") take(entry, given_.port, {.min = 0, .max = kMostPort});
    if (key == "use_cpu") take(entry, given_.file_use_cpu);
    if (key == "gpu_ids") take(entry, given_.file_gpus);
  }

  /// Flags win, and a file over those that it is based on, which come first.
  template <typename T>
  void take(const YamlEntry& entry, Choice<T>& choice, const FieldTraits& limits = {}) {
    const bool free = !choice.by_flag();
    if (entry.null && free) choice.value.reset();
    if (entry.null) return;
    const Field field{.name = entry.key, .type = field_type<T>(), .traits = limits};
    Problem problem{.where = entry.value_where};
    const Value value = parse_value(field, entry.texts, problem);
    if (!std::holds_alternative<T>(value)) return problems_.push_back(std::move(problem));
    if (free) choice = {std::get<T>(value), entry.key, entry.value_where};
  }

  Given& given_;
  std::vector<Problem> problems_;
};

/// The value of "--name value" or "--name=value" in a command; the last one counts.
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

/// As execvp() looks for it.
bool can_run(const std::string& program) {
  const auto is_program = [](const std::filesystem::path& path) {
    std::error_code ignored;
    return !std::filesystem::is_directory(path, ignored) && access(path.c_str(), X_OK) == 0;
  };
  if (program.find('/') != std::string::npos) return is_program(program);
  const std::vector<std::string> folders = words(process_environment("PATH").value_or(""), ':');
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
    return is_program(std::filesystem::path(folder) / program);
  });
}

/// The program to start: a command of this one, or another program if it is written with a slash.
std::vector<std::string> command_of(std::vector<std::string> rest, const Given& given) {
  if (!rest.empty() && rest[0] == "--") rest.erase(rest.begin());
  if (rest.empty()) {
    throw wrong("nothing to start", "launch",
                "Write `teratron launch --nproc-per-node 2 -- pretrain gpt FLAGS...`");
  }
  if (rest[0].starts_with("-")) {
    throw wrong("unknown flag " + printable(rest[0], 40), "teratron launch", "See teratron launch --help");
  }
  if (rest[0].find('/') != std::string::npos) {
    if (!can_run(rest[0])) {
      throw wrong("is no program that can be run", printable(rest[0]),
                  "Correct the path; commands of teratron are written without a slash");
    }
    if (given.config_file && !value_of(rest, "--config-file")) {
      notice("launch obeys its keys of {0}; for the others {1} needs --config-file {0} too",
             *given.config_file, rest[0]);
    }
    return rest;
  }
  if (given.config_file) {
    if (value_of(rest, "--config-file")) {
      throw wrong("both launch and the command name a configuration file", "--config-file", "Name it once");
    }
    rest.insert(rest.end(), {"--config-file", *given.config_file});
  }
  if (given.use_cpu) rest.insert(rest.end(), {"--device", "cpu"});
  rest.insert(rest.begin(), std::filesystem::read_symlink("/proc/self/exe").string());
  return rest;
}

/// Ranks on this machine.
int64_t ranks_here(const Given& given, int64_t machines, int64_t otherwise) {
  const Choice<int64_t>&here = given.ranks_here, &all = given.ranks;
  if (!all.value || (here.by_flag() && !all.by_flag())) return here.value.value_or(otherwise);
  if (*all.value % machines != 0) {
    throw wrong(fmt::format("{} = {}, {} ranks on {} machines", all.name, *all.value, *all.value, machines),
                all.where(), "Use a multiple of the number of machines");
  }
  const int64_t share = *all.value / machines;
  if (here.value.value_or(share) == share) return share;
  throw wrong(fmt::format("{} = {} contradicts {} = {} on {} machines", here.name, *here.value, all.name,
                          *all.value, machines),
              here.where(), "Give one of them");
}

void place_ranks(const Given& given, LaunchOptions& options) {
  options.machines = given.machines.value.value_or(1);
  options.machine = given.machine.value.value_or(0);
  if (options.machine >= options.machines) {
    throw wrong(fmt::format("{} = {} means machine {} of {}", given.machine.name, options.machine,
                            options.machine, options.machines),
                given.machine.where(),
                fmt::format("Number the machines from 0 to {}, or correct {}", options.machines - 1,
                            given.machines.name));
  }
  const int64_t gpus = options.backend == Backend::nccl ? gpu_count() : 0;
  options.ranks_here = ranks_here(given, options.machines, std::max<int64_t>(gpus, 1));
  if (options.backend == Backend::nccl && options.ranks_here > gpus) {
    throw wrong(fmt::format("{} ranks, but {} GPUs on this machine", options.ranks_here, gpus),
                (given.ranks_here.value ? given.ranks_here : given.ranks).where(),
                "NCCL needs a GPU for each rank: start fewer, or add --use-cpu");
  }
}

void note_inert(const Given& given, Backend backend) {
  const auto note = [&](const auto& choice) {
    if (choice.by_flag()) notice("{} has no effect with --backend {}", choice.name, name_of(backend));
  };
  note(given.address);
  note(given.port);
}

void place_meeting(const Given& given, LaunchOptions& options) {
  options.master_address = given.address.value.value_or("127.0.0.1");
  options.master_port = static_cast<int>(given.port.value.value_or(options.machines > 1 ? kDefaultPort : 0));
  if (options.machines == 1 && options.one_process()) return note_inert(given, options.backend);
  if (options.machines == 1) return;
  if (options.one_process()) {
    throw wrong(fmt::format("backend {} starts ranks on one machine", name_of(options.backend)),
                given.machines.where(),
                options.backend == Backend::mpi
                    ? "Start `mpirun ... teratron pretrain ...` yourself with your hosts"
                    : "Use --backend processes");
  }
  if (!given.address.value) {
    throw wrong(
        fmt::format("{} = {}, but nothing says where they meet", given.machines.name, options.machines),
        given.machines.where(),
        given.machines.by_flag()
            ? "Give --master-addr with an address of machine 0 that all machines reach, the same to all"
            : "Set main_process_ip to an address of machine 0 that all machines reach, the same in the "
              "files of all");
  }
  if (options.master_port == 0) {
    throw wrong(fmt::format("{} = 0, any free port, which other machines cannot know", given.port.name),
                given.port.where(), "Choose a port, the same for all machines, or leave it out");
  }
}

/// Flags of the command win over the file, which the command reads too.
bool computes_on_cpu(const Given& given, const std::vector<std::string>& command) {
  if (const auto device = value_of(command, "--device")) return device == "cpu";
  return given.use_cpu || given.file_use_cpu.value.value_or(false);
}

/// As the command's flags say; what is wrong with them the command tells.
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

/// To this process, which counts them, and to those that it starts.
void show_gpus(const Given& given) {
  const std::string ids = given.file_gpus.value.value_or("all");
  if (ids == "all") return;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible && ids != visible) {
    notice("gpu_ids has no effect: CUDA_VISIBLE_DEVICES = {} is set", printable(visible, 100));
  }
  setenv("CUDA_VISIBLE_DEVICES", ids.c_str(), /*replace=*/0);
}

Backend backend_of(const Given& given, bool on_cpu) {
  const auto gpus = [&] { return !on_cpu && gpu_count() > 0; };
  if (!given.backend) return gpus() ? Backend::nccl : Backend::processes;
  const std::optional<Backend> backend = backend_from(*given.backend);
  if (!backend) {
    throw wrong(fmt::format("'{}' is no backend", printable(*given.backend, 40)), "--backend",
                "Use one of threads, processes, mpi, nccl");
  }
  if (*backend == Backend::mpi && !can_run("mpirun")) {
    throw wrong("mpirun is not installed", "--backend mpi", "Install Open MPI, or use --backend processes");
  }
  if (*backend == Backend::nccl && !gpus()) {
    throw wrong(on_cpu ? "NCCL needs GPUs, but the ranks shall compute on CPUs"
                       : "NCCL needs GPUs, and none is visible",
                "--backend", "Use --backend processes, or look at `teratron env`");
  }
  return *backend;
}

}  // namespace

std::optional<LaunchOptions> read_launch_options(std::span<const std::string> args) {
  CLI::App app("Starts the ranks of a job: teratron launch --nproc-per-node 2 -- pretrain gpt FLAGS...",
               "teratron launch");
  app.prefix_command();
  Given given;
  declare(app, given);
  if (!parse_command(app, args)) return std::nullopt;
  if (given.config_file) AccelerateKeys(given).read();
  show_gpus(given);
  LaunchOptions options{.max_restarts = given.max_restarts};
  options.command = command_of(app.remaining(), given);
  options.backend = backend_of(given, computes_on_cpu(given, options.command));
  place_ranks(given, options);
  place_meeting(given, options);
  options.timeout = timeout_of(options);
  const std::filesystem::path folder =
      value_of(options.command, "--run-dir").value_or(value_of(options.command, "--save").value_or(""));
  options.log_directory = given.log_directory.value_or((folder / "logs").string());
  return options;
}

}  // namespace teratron
