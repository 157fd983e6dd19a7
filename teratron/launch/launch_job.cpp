#include "teratron/launch/launch_job.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstring>
#include <thread>

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "teratron/base/environment.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kGracePeriod{5};  // for the other ranks to exit by themselves
constexpr std::chrono::milliseconds kPollInterval{250};
constexpr std::array<int, 3> kForwardedSignals = {SIGHUP, SIGINT, SIGTERM};
constexpr int kStopped = static_cast<int>(ExitCode::stopped);

/// The launcher's exit code: retryable if the rank was killed from outside, final if it crashed (it would
/// crash again) or was asked to stop.
int exit_code_of(int status) {
  if (WIFEXITED(status)) {
    const int code = WEXITSTATUS(status);
    return code == 128 + SIGKILL ? static_cast<int>(ExitCode::retryable) : code;  // mpirun's code for SIGKILL
  }
  constexpr std::array<int, 8> kFinal = {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE, SIGHUP, SIGINT, SIGTERM};
  const int signal = WTERMSIG(status);
  const bool final = std::find(kFinal.begin(), kFinal.end(), signal) != kFinal.end();
  return final ? 128 + signal : static_cast<int>(ExitCode::retryable);
}

std::string describe_signal(int signal) {
  const char* name = sigabbrev_np(signal);
  return fmt::format("signal {} (SIG{})", signal, name ? name : "?");
}

bool is_forwarded(int signal) {
  return std::find(kForwardedSignals.begin(), kForwardedSignals.end(), signal) != kForwardedSignals.end();
}

std::string describe_exit(int status) {
  if (WIFEXITED(status)) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  return "was killed by " + describe_signal(WTERMSIG(status));
}

/// Open MPI's "[1,3]<stdout>:text" -> 3 and the text; nullopt for a line of mpirun itself.
std::optional<std::pair<int64_t, std::string_view>> parse_tag(std::string_view line) {
  const size_t comma = line.find(','), colon = line.find(">:");
  int64_t rank = -1;
  if (!line.starts_with('[') || comma == line.npos || colon == line.npos) return std::nullopt;
  const auto [end, error] = std::from_chars(line.data() + comma + 1, line.data() + line.size(), rank);
  if (error != std::errc() || !std::string_view(end).starts_with("]<std")) return std::nullopt;
  return std::pair(rank, line.substr(colon + 2));
}

}  // namespace

SignalQueue::SignalQueue() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (int signal : kForwardedSignals) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, &previous_);
  fd_ = FileDescriptor(signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
}

SignalQueue::~SignalQueue() {
  if (hung_up_) ::signal(SIGHUP, SIG_IGN);
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

int SignalQueue::next() {
  signalfd_siginfo info{};
  if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return 0;
  hung_up_ = hung_up_ || info.ssi_signo == SIGHUP;
  return static_cast<int>(info.ssi_signo);
}

LaunchJob::LaunchJob(const LaunchOptions& options, int64_t attempt) : options_(options), attempt_(attempt) {
  make_directories(options.log_directory, ExitCode::config);
  // Threads share one output.
  const int64_t outputs = options.backend == Backend::threads ? 1 : options.nproc_per_node;
  for (int64_t i = 0; i < outputs; ++i) {
    const int64_t rank = options.first_rank() + i;
    const std::string again = attempt > 0 ? fmt::format(".attempt-{}", attempt) : "";
    const bool on_screen = rank == 0 || rank == options.world_size() - 1;
    const auto log = std::filesystem::path(options.log_directory) / fmt::format("rank-{}{}.log", rank, again);
    outputs_.push_back(std::make_unique<RankOutput>(log, on_screen));
    if (i > 0 || outputs_[0]->log() == log) continue;
    notice("{} belongs to a job that is running. The logs of this one are {} and so on", log.string(),
           outputs_[0]->log().string());
  }
}

std::map<std::string, std::optional<std::string>> LaunchJob::variables(int64_t local_rank) const {
  std::map<std::string, std::optional<std::string>> result = {
      {"TERATRON_BACKEND", name_of(options_.backend)},
      {"MASTER_ADDR", options_.master_address},
      {"MASTER_PORT", std::to_string(port_)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt_)},
      {"TORCHELASTIC_USE_AGENT_STORE", std::nullopt},
      {"TERATRON_STORE_LISTENER", std::nullopt},
      {"TERATRON_JOB_NAME", options_.name},
      {"TERATRON_PORT_RANGE", options_.ports ? std::optional(to_string(*options_.ports)) : std::nullopt},
      {"TERATRON_JOB_SECRET", options_.secret},
      {"TERATRON_PROGRESS", has_status_line() ? std::optional<std::string>("launcher") : std::nullopt},
  };
  if (options_.backend == Backend::mpi) {  // mpirun numbers its ranks itself
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
      result[name] = std::nullopt;
    }
  } else {
    result["RANK"] = std::to_string(options_.first_rank() + local_rank);
    result["WORLD_SIZE"] = std::to_string(options_.world_size());
    result["LOCAL_RANK"] = std::to_string(local_rank);
    result["LOCAL_WORLD_SIZE"] = std::to_string(options_.nproc_per_node);
    result["GROUP_RANK"] = std::to_string(options_.node_rank);
  }
  if (!getenv("OMP_NUM_THREADS") && options_.backend != Backend::threads) {
    const int64_t share = std::thread::hardware_concurrency() / options_.nproc_per_node;
    result["OMP_NUM_THREADS"] = std::to_string(std::max<int64_t>(share, 1));
  }
  return result;
}

/// Rank 0 inherits a listening socket, so that no other program can take its port meanwhile.
void LaunchJob::start() {
  if (options_.single_process()) return start_single_process();
  FileDescriptor listener;
  port_ = options_.master_port;
  if (options_.node_rank == 0 && options_.world_size() > 1) {
    const std::vector<std::string> addresses = resolve(options_.master_address);
    if (addresses.empty())
      throw Fault(fmt::format("'{}' does not resolve. Correct --master-addr (main_process_ip)",
                              options_.master_address));
    listener = options_.master_port == 0 ? listen_in(addresses[0], options_.ports)
                                         : listen_on(addresses[0], options_.master_port);
    port_ = port_of(listener);
  }
  for (int64_t i = 0; i < options_.nproc_per_node; ++i) {
    const bool serves = listener.get() >= 0 && i == 0;
    start_rank(i, serves ? std::optional(listener.get()) : std::nullopt);
  }
}

void LaunchJob::start_rank(int64_t local_rank, std::optional<int> listener) {
  ChildOptions child{.command = options_.command, .variables = variables(local_rank), .inherit = listener};
  if (listener) child.variables["TERATRON_STORE_LISTENER"] = std::to_string(*listener);
  children_.push_back(
      {.process = std::make_unique<ChildProcess>(child), .rank = options_.first_rank() + local_rank});
}

void LaunchJob::start_single_process() {
  ChildOptions child{.command = options_.command, .variables = variables(0)};
  if (options_.backend == Backend::mpi) child.command = mpirun_command();
  children_.push_back({.process = std::make_unique<ChildProcess>(child)});
}

std::vector<std::string> LaunchJob::mpirun_command() const {
  std::vector<std::string> command = {"mpirun",          "-np",       std::to_string(options_.nproc_per_node),
                                      "--oversubscribe", "--bind-to", "none",
                                      "--tag-output"};
  if (geteuid() == 0) command.emplace_back("--allow-run-as-root");
  command.insert(command.end(), options_.command.begin(), options_.command.end());
  return command;
}

void LaunchJob::handle_line(const Child& child, std::string_view line) {
  int64_t place = child.rank - options_.first_rank();
  if (options_.backend == Backend::mpi) {
    if (const auto from = parse_tag(line)) {
      place = std::clamp<int64_t>(from->first, 0, options_.nproc_per_node - 1);
      line = from->second;
    }
  }
  outputs_[place]->add_line(line);
}

void LaunchJob::read_output(Child& child) {
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t got = read(child.process->output().get(), buffer.data(), buffer.size());
    if (got < 0) return;
    if (got == 0) {
      child.drained = true;
      if (!child.partial_line.empty()) handle_line(child, child.partial_line);
      child.partial_line.clear();
      return;
    }
    child.partial_line.append(buffer.data(), static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end; (end = child.partial_line.find('\n', begin)) != std::string::npos; begin = end + 1) {
      handle_line(child, std::string_view(child.partial_line).substr(begin, end - begin));
    }
    child.partial_line.erase(0, begin);
  }
}

void LaunchJob::handle_signal(int number) {
  if (number == SIGHUP && signals_forwarded_ > 0) return;  // a closing terminal may send several
  ++signals_forwarded_;
  if (signals_forwarded_ == 1) {
    notice(
        "{} forwarded: ranks in training save and stop after this step; a second one ends them immediately, "
        "without saving",
        describe_signal(number));
  }
  for (Child& child : children_) {
    if (!child.process->running()) continue;
    if (signals_forwarded_ > 2) {
      child.process->signal(SIGKILL);
    } else if (options_.backend == Backend::mpi) {
      child.process->signal_children(number);  // mpirun would kill them within seconds
      child.process->signal_children(SIGCONT);
    } else {
      child.process->signal(number);
      child.process->signal(SIGCONT);  // a stopped rank handles the signal too, and the others wait for it
    }
  }
}

void LaunchJob::reap_children() {
  for (Child& child : children_) {
    if (!child.process->reap()) continue;
    const int status = child.process->status();
    const bool good = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kStopped);
    if (good || child.killed) continue;
    failed_children_.push_back(&child);
    if (!deadline_) deadline_ = Clock::now() + kGracePeriod;
  }
}

/// If one rank is stopped, the others time out. If all are, only the launcher can end the job.
void LaunchJob::check_stopped() {
  bool all = !deadline_;
  for (Child& child : children_) {
    const std::optional<int> signal = child.process->stopped();
    if (signal && !child.stop_reported) {
      warn("{} was stopped by {}; `kill -CONT {}` resumes it", describe_child(child),
           describe_signal(*signal), child.process->pid());
    }
    child.stop_reported = signal.has_value();
    all = all && (signal || !child.process->running());
  }
  if (!all) return all_stopped_since_.reset();
  if (!all_stopped_since_) all_stopped_since_ = Clock::now();
  if (Clock::now() - *all_stopped_since_ < options_.timeout || !failure_.empty()) return;
  failure_ = fmt::format("all ranks on this machine were stopped for {} s", options_.timeout.count());
  deadline_ = Clock::now();
}

void LaunchJob::kill_stragglers() {
  if (!deadline_ || Clock::now() < *deadline_) return;
  for (Child& child : children_) {
    if (!child.process->running() || child.killed) continue;
    child.killed = true;
    child.process->signal(SIGKILL);  // a stopped process handles no other signal
  }
}

bool LaunchJob::running() const {
  return std::any_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.process->running(); });
}

void LaunchJob::poll_events(SignalQueue& signals) {
  std::vector<pollfd> polled = {{signals.fd(), POLLIN, 0}};
  for (const Child& child : children_) {
    polled.push_back({child.drained ? -1 : child.process->output().get(), POLLIN, 0});
  }
  poll(polled.data(), polled.size(), static_cast<int>(kPollInterval.count()));
  for (Child& child : children_) {
    if (!child.drained) read_output(child);
  }
  while (const int number = signals.next()) {
    if (number != SIGCHLD) handle_signal(number);
  }
}

LaunchJob::Result LaunchJob::run(SignalQueue& signals) {
  children_.reserve(static_cast<size_t>(options_.nproc_per_node));
  start();
  while (running()) {
    poll_events(signals);
    reap_children();
    check_stopped();
    kill_stragglers();
  }
  for (Child& child : children_) read_output(child);  // output written just before they exited
  status_line("");
  return result();
}

std::string LaunchJob::describe_child(const Child& child) const {
  const std::string process = fmt::format("(pid {} on {})", child.process->pid(), host_name());
  if (options_.backend == Backend::mpi) return fmt::format("mpirun {}", process);
  if (options_.backend == Backend::threads) return fmt::format("the process of all ranks {}", process);
  return fmt::format("rank {} {}", child.rank, process);
}

LaunchJob::Result LaunchJob::result() const {
  Result result{.failure = failure_, .interrupted = signals_forwarded_ > 0};
  if (!failure_.empty()) {
    result.code = static_cast<int>(ExitCode::retryable);
    return result;
  }
  if (failed_children_.empty()) {
    for (const Child& child : children_)
      result.code = std::max(result.code, WEXITSTATUS(child.process->status()));
    return result;
  }
  // Ranks fail because of the first one. If several exit at the same time, it is the one that was killed, or
  // else that printed an error which does not name another rank.
  const auto killed = [](const Child* child) { return WIFSIGNALED(child->process->status()); };
  const auto output_of = [&](const Child* child) {
    return outputs_[child->rank - options_.first_rank()].get();
  };
  const auto own_error = [&](const Child* child) { return output_of(child)->has_own_error(); };
  const auto any_error = [&](const Child* child) { return output_of(child)->has_error(); };
  auto first = std::find_if(failed_children_.begin(), failed_children_.end(), killed);
  if (first == failed_children_.end())
    first = std::find_if(failed_children_.begin(), failed_children_.end(), own_error);
  if (first == failed_children_.end())
    first = std::find_if(failed_children_.begin(), failed_children_.end(), any_error);
  const Child& cause = first == failed_children_.end() ? *failed_children_.front() : **first;
  const RankOutput* output = output_of(&cause);
  int64_t iteration = 0;
  for (const auto& each : outputs_) {
    iteration = std::max(iteration, each->iteration());
    if (options_.backend == Backend::mpi && each->has_error() && !output->has_error()) output = each.get();
  }
  const int status = cause.process->status();
  if (result.interrupted && iteration == 0 && WIFSIGNALED(status) && is_forwarded(WTERMSIG(status))) {
    result.code = exit_code_of(status);
    result.failure = fmt::format("{} received before training began: nothing was saved",
                                 describe_signal(WTERMSIG(status)));
    return result;
  }
  std::string lines = output->last_lines();
  if (lines.empty()) lines = options_.node_rank == 0 ? " (nothing)" : " (nothing; see the machine of rank 0)";
  result.code = exit_code_of(status);
  result.failure = fmt::format(
      "{} {}{}{}. Its last lines, of {}:{}", describe_child(cause), describe_exit(status),
      failed_children_.size() > 1 || children_.size() > 1 ? ", the first to fail" : "",
      iteration > 0 ? fmt::format(", after iteration {}", iteration) : "", output->log().string(), lines);
  return result;
}

}  // namespace teratron
