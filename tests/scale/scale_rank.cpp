// One rank of a job without a model: the host side of a start, of agreements and of barriers, and what it
// cost. tests/scale/test_scale.py starts many.
//
//   scale_rank [--barriers N] [--start-timeout SECONDS] [--timeout SECONDS (of what follows)]
//              [--checkpoint FOLDER]
//
// Prints "joined SECONDS" when all ranks are connected, then a JSON object with the costs, and passes N - 1
// more barriers, ten a second; if one fails, a JSON object with what it cost. With a folder, a checkpoint is
// saved, found, loaded and replaced there, and the holders of some tensors are found.
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>
#include <thread>

#include "tests/scale/checkpoint_trial.h"
#include "tests/scale/file_calls.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "teratron/base/environment.h"
#include "teratron/base/error.h"
#include "teratron/comm/consensus.h"
#include "teratron/comm/host/process_backend.h"
#include "teratron/comm/host/process_group.h"
#include "teratron/comm/rendezvous/connect_ranks.h"
#include "teratron/optim/bucket_layout.h"
#include "teratron/optim/replica_agreement.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The host side of a communicator of all ranks.
class AllRanks final : public HostGroup {
 public:
  explicit AllRanks(ProcessBackend& backend) {
    std::vector<int64_t> ranks(backend.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    group_ = backend.group(ranks);
  }
  int64_t rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }
  void send_bytes(int64_t to, const std::string& bytes) override {
    group_->send(to, {.operation = "bytes"}, std::as_bytes(std::span(bytes)));
  }
  std::string receive_bytes(int64_t from) override {
    const ByteBuffer buffer = group_->receive(from, {.operation = "bytes"});
    return {reinterpret_cast<const char*>(buffer.bytes().data()), buffer.size()};
  }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return group_->all_gather(bytes);
  }
  std::vector<std::string> gather_bytes(const std::string& bytes) override { return group_->gather(bytes); }
  std::string broadcast_bytes(const std::string& bytes) override { return group_->broadcast(bytes); }
  void barrier() { group_->barrier(); }

 private:
  std::unique_ptr<ProcessGroup> group_;
};

int64_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

/// A line of /proc/self/status: "VmRSS:", the memory now, or "VmHWM:", the most so far.
int64_t memory_kib(const std::string& line) {
  std::ifstream file("/proc/self/status");
  std::string word;
  int64_t kib = 0;
  while (file >> word) {
    if (word == line) file >> kib;
  }
  return kib;
}

/// CPU time of all threads of this process.
double cpu_seconds() {
  timespec now = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

nlohmann::json cost(const HostTraffic& before, const HostTraffic& after, double seconds) {
  return {{"messages", after.messages - before.messages},
          {"bytes", after.bytes - before.bytes},
          {"waits", after.waits - before.waits},
          {"seconds", seconds}};
}

/// Runs `work` and adds what it cost.
void measure(nlohmann::json& report, const ProcessBackend& backend, const std::string& name,
             const std::function<void()>& work) {
  const HostTraffic before = backend.traffic();
  const FileCalls files = file_calls();
  const Clock::time_point begin = Clock::now();
  const double cpu = cpu_seconds();
  work();
  report[name] = cost(before, backend.traffic(), seconds_since(begin));
  report[name]["cpu"] = cpu_seconds() - cpu;
  report[name]["opened"] = file_calls().opened - files.opened;
  report[name]["looked_at"] = file_calls().looked_at - files.looked_at;
  report[name]["removed"] = file_calls().removed - files.removed;
}

NamedValues settings() {
  NamedValues record;
  for (int i = 0; i < 300; ++i) record.emplace_back(fmt::format("a_setting_{}", i), std::to_string(i));
  return record;
}

std::vector<BucketItem> parameters() {
  std::vector<BucketItem> items;
  for (int i = 0; i < 300; ++i) items.push_back({fmt::format("layers.{}.mlp.linear_fc1.weight", i), 8192});
  return items;
}

/// As if all ranks were replicas.
void compare_buckets(HostGroup& ranks) {
  const std::vector<BucketItem> items = parameters();
  const BucketLayout layout = lay_out(items, {.bucket_size = 100'000, .block = 64, .ranks = ranks.size()});
  const std::string found = find_different_bucket(ranks, ranks.rank(), describe_buckets(items, layout));
  TERATRON_ASSERT(found.empty(), "{}", found);
}

/// As if all ranks were stages, each with a few tensors; the first and the last share one.
void find_tensors(HostGroup& ranks) {
  const int64_t stage = ranks.rank(), last = ranks.size() - 1;
  std::vector<HeldTensor> tensors;
  for (int i = 0; i < 16; ++i)
    tensors.push_back({fmt::format("0 layers.{}.{}.weight", stage, i), "[8192, 1024] BFloat16"});
  if (stage == 0 || stage == last) tensors.push_back({"0 embedding.weight", "[4000, 8192] BFloat16"});
  const FoundHolders found = find_holders(ranks, {.rank = stage, .stage = stage}, tensors);
  TERATRON_ASSERT(found.problem.empty() && found.of.size() == tensors.size());
  if (tensors.size() > 16) TERATRON_ASSERT(found.of.back().stages == std::set<int64_t>({0, last}));
}

struct Options {
  int64_t barriers = 1;
  std::chrono::seconds start_timeout{60}, timeout{60};
  std::string checkpoint = {};  // the folder
};

void run(const LaunchEnv& env, const Options& options) {
  const Clock::time_point begin = Clock::now();
  const std::chrono::milliseconds limit = options.start_timeout;
  ProcessBackend backend(connect_ranks(env, *join_rendezvous(env, limit), limit), options.timeout);
  const double joined = seconds_since(begin);
  std::cout << fmt::format("joined {:.3f}\n", joined) << std::flush;
  HostTraffic passed;  // until the last barrier
  try {
    AllRanks ranks(backend);
    nlohmann::json report = {{"rank", env.rank}, {"start", cost({}, backend.traffic(), joined)}};
    report["start"]["cpu"] = cpu_seconds();
    measure(report, backend, "barrier", [&] { ranks.barrier(); });
    measure(report, backend, "consensus", [&] { find_differences(ranks, settings()); });
    measure(report, backend, "gather", [&] { ranks.gather_bytes(std::string(256, 'x')); });
    measure(report, backend, "broadcast", [&] { ranks.broadcast_bytes(std::string(256, 'x')); });
    measure(report, backend, "kinds", [&] { union_of(ranks, {"15 6", fmt::format("15 {}", env.rank % 2)}); });
    measure(report, backend, "buckets", [&] { compare_buckets(ranks); });
    if (!options.checkpoint.empty()) {
      CheckpointTrial trial(options.checkpoint, ranks);
      measure(report, backend, "save", [&] { trial.save(); });
      measure(report, backend, "find", [&] { trial.find(); });
      measure(report, backend, "load_found", [&] { trial.load_found(); });
      measure(report, backend, "read_found", [&] { trial.read_found(); });
      measure(report, backend, "load", [&] { trial.load(); });
      measure(report, backend, "replace", [&] { trial.replace(); });
      measure(report, backend, "removal", [&] { trial.finish_removal(); });
      measure(report, backend, "holders", [&] { find_tensors(ranks); });
    }
    ranks.barrier();
    report["connections"] = backend.traffic().connections;
    report["descriptors"] = open_files();
    report["resident_kib"] = memory_kib("VmRSS:");
    report["peak_kib"] = memory_kib("VmHWM:");
    std::cout << report.dump() << std::endl;
    for (int64_t i = 1; i < options.barriers; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      passed = backend.traffic();
      ranks.barrier();
    }
    backend.finish();
  } catch (const Fault& fault) {
    backend.fail(fmt::format("rank {} failed: {}", env.rank, fault.what()), fault.exit_code());
    std::cout << nlohmann::json{{"failure", cost(passed, backend.traffic(), 0)}}.dump() << std::endl;
    throw;
  }
}

int main_of(std::span<char*> args) {
  Options options;
  for (size_t i = 1; i + 1 < args.size(); i += 2) {
    const std::string flag = args[i];
    if (flag == "--checkpoint") options.checkpoint = args[i + 1];
    const int64_t value = flag == "--checkpoint" ? 0 : std::stoll(args[i + 1]);
    if (flag == "--barriers") options.barriers = value;
    if (flag == "--start-timeout") options.start_timeout = std::chrono::seconds(value);
    if (flag == "--timeout") options.timeout = std::chrono::seconds(value);
  }
  try {
    run(read_launch_env(process_environment), options);
    return 0;
  } catch (const Fault& fault) {
    std::cout << "fault: " << fault.what() << std::endl;
    return static_cast<int>(fault.exit_code());
  } catch (const UserError& error) {
    std::cout << "error: " << error.what() << std::endl;
    return static_cast<int>(error.exit_code());
  }
}

}  // namespace
}  // namespace teratron

int main(int argc, char** argv) {
  return teratron::main_of({argv, static_cast<size_t>(argc)});
}
