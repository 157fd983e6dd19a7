#include "teratron/cli/launch_options.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <CLI/CLI.hpp>

#include "teratron/base/error.h"
#include "teratron/base/yaml.h"
#include "teratron/cli/command_line.h"
#include "teratron/train/device.h"

namespace teratron {
namespace {

constexpr int kDefaultPort = 29500;  // where several machines meet unless told otherwise; torchrun's
constexpr int64_t kMostRanks = 1 << 16;

/// As given; what was not given is absent.
struct Given {
  std::optional<int64_t> ranks_here, ranks, machines, machine, port;
  std::optional<std::string> address, backend, log_directory, config_file;
  int64_t max_restarts = 0;
  bool use_cpu = false;
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
  app.add_option(flags({"nproc-per-node"}), given.ranks_here,
                 "Ranks on this machine; default: its GPUs, or 1")
      ->check(ranks);
  app.add_option(flags({"num-processes"}), given.ranks, "Ranks on all machines together (Accelerate's)")
      ->check(ranks);
  app.add_option(flags({"nnodes", "num-machines"}), given.machines, "Machines; default 1")->check(ranks);
  app.add_option(flags({"node-rank", "machine-rank"}), given.machine, "Number of this machine, from 0")
      ->check(CLI::Range(int64_t{0}, kMostRanks));
  app.add_option(flags({"master-addr", "main-process-ip"}), given.address,
                 "Address of machine 0 that all machines reach; default 127.0.0.1");
  app.add_option(flags({"master-port", "main-process-port"}), given.port,
                 "Port on it; default: a free one on one machine, 29500 on several")
      ->check(CLI::Range(int64_t{0}, int64_t{65535}));
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
      if (entry.section.empty() && !entry.null && entry.texts.size() == 1) use(entry);
    }
    if (!problems_.empty()) throw UserError(ExitCode::config, std::move(problems_));
  }

 private:
  void use(const YamlEntry& entry) {
    if (entry.key == "num_processes") number(entry, given_.ranks_here ? nullptr : &given_.ranks);
    if (entry.key == "num_machines") number(entry, &given_.machines);
    if (entry.key == "machine_rank") number(entry, &given_.machine);
    if (entry.key == "main_process_port") number(entry, &given_.port);
    if (entry.key == "main_process_ip" && !given_.address) given_.address = entry.texts[0];
    if (entry.key == "use_cpu" && (entry.texts[0] == "true" || entry.texts[0] == "True"))
      given_.use_cpu = true;
  }

  void number(const YamlEntry& entry, std::optional<int64_t>* target) {
    int64_t value = -1;
    const std::string& text = entry.texts[0];
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > kMostRanks) {
      problems_.push_back({.what = fmt::format("{} = '{}' is no number from 0 to {}", entry.key,
                                               printable(text, 40), kMostRanks),
                           .where = entry.value_where,
                           .fix = "Correct it"});
    } else if (target && !*target) {
      *target = value;
    }
  }

  Given& given_;
  std::vector<Problem> problems_;
};

UserError wrong(std::string what, std::string where, std::string fix) {
  return config_error({.what = std::move(what), .where = std::move(where), .fix = std::move(fix)});
}

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

/// The program to start: a command of this one, or another program if it is written with a slash.
std::vector<std::string> command_of(std::vector<std::string> rest, const Given& given) {
  if (!rest.empty() && rest[0] == "--") rest.erase(rest.begin());
  if (rest.empty()) {
    throw wrong("nothing to start", "launch",
                "Write `teratron launch --nproc-per-node 2 -- pretrain gpt FLAGS...`");
  }
  if (rest[0].find('/') != std::string::npos) return rest;
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

void place_ranks(const Given& given, LaunchOptions& options) {
  options.machines = given.machines.value_or(1);
  options.machine = given.machine.value_or(0);
  if (options.machine >= options.machines) {
    throw wrong(fmt::format("machine {} of {}", options.machine, options.machines), "--node-rank",
                fmt::format("Number the machines from 0 to {}", options.machines - 1));
  }
  const int64_t gpus = options.backend == Backend::nccl ? gpu_count() : 0;
  options.ranks_here = given.ranks_here.value_or(std::max<int64_t>(gpus, 1));
  if (given.ranks) {
    if (*given.ranks % options.machines != 0) {
      throw wrong(fmt::format("{} ranks on {} machines", *given.ranks, options.machines), "--num-processes",
                  "Use a multiple of the number of machines");
    }
    options.ranks_here = *given.ranks / options.machines;
  }
  if (options.backend == Backend::nccl && options.ranks_here > gpus) {
    throw wrong(fmt::format("{} ranks, but {} GPUs on this machine", options.ranks_here, gpus),
                "--nproc-per-node", "NCCL needs a GPU for each rank: start fewer, or add --use-cpu");
  }
}

void place_meeting(const Given& given, LaunchOptions& options) {
  if (options.machines > 1 && options.one_process()) {
    throw wrong(fmt::format("backend {} starts ranks on one machine", name_of(options.backend)), "--nnodes",
                options.backend == Backend::mpi
                    ? "Start `mpirun ... teratron pretrain ...` yourself with your hosts"
                    : "Use --backend processes");
  }
  if (options.machines > 1 && !given.address) {
    throw wrong(
        "several machines, but nothing says where they meet", "--master-addr",
        "Give --master-addr with an address of machine 0 that all machines reach, and the same to all");
  }
  options.master_address = given.address.value_or("127.0.0.1");
  options.master_port = static_cast<int>(given.port.value_or(options.machines > 1 ? kDefaultPort : 0));
}

Backend backend_of(const Given& given, bool on_cpu) {
  const bool gpus = !on_cpu && gpu_count() > 0;
  if (!given.backend) return gpus ? Backend::nccl : Backend::processes;
  const std::optional<Backend> backend = backend_from(*given.backend);
  if (!backend) {
    throw wrong(fmt::format("'{}' is no backend", printable(*given.backend, 40)), "--backend",
                "Use one of threads, processes, mpi, nccl");
  }
  if (*backend == Backend::nccl && !gpus) {
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
  LaunchOptions options{.max_restarts = given.max_restarts};
  options.command = command_of(app.remaining(), given);
  const bool on_cpu = given.use_cpu || value_of(options.command, "--device") == "cpu";
  options.backend = backend_of(given, on_cpu);
  place_ranks(given, options);
  place_meeting(given, options);
  const std::filesystem::path folder =
      value_of(options.command, "--run-dir").value_or(value_of(options.command, "--save").value_or(""));
  options.log_directory = given.log_directory.value_or((folder / "logs").string());
  return options;
}

}  // namespace teratron
