#include "teratron/comm/launch_env.h"

#include <atomic>
#include <map>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/comm/host/rendezvous.h"
#include "teratron/comm/host/socket_transport.h"
#include "teratron/comm/world.h"

namespace teratron {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchEnv env_of(const Variables& variables) {
  return read_launch_env([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string problem_of(const Variables& variables) {
  try {
    env_of(variables);
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    return error.what();
  }
  return "no error";
}

TEST(LaunchEnv, WithoutVariablesIsOneRank) {
  const LaunchEnv env = env_of({{"PATH", "/bin"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(env.size, 1);
  EXPECT_EQ(env.rank, 0);
}

TEST(LaunchEnv, ReadsTheVariablesOfEveryLauncher) {
  const LaunchEnv torchrun = env_of({{"RANK", "3"},
                                     {"WORLD_SIZE", "8"},
                                     {"LOCAL_RANK", "1"},
                                     {"MASTER_ADDR", "n1"},
                                     {"MASTER_PORT", "1234"},
                                     {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                     {"TORCHELASTIC_RESTART_COUNT", "2"},
                                     {"OMPI_COMM_WORLD_RANK", "0"}});
  EXPECT_EQ(torchrun.rank, 3);
  EXPECT_EQ(torchrun.size, 8);
  EXPECT_EQ(torchrun.local_rank, 1);
  EXPECT_EQ(torchrun.master_address, "n1");
  EXPECT_EQ(torchrun.master_port, 1234);
  EXPECT_TRUE(torchrun.agent_store);
  EXPECT_EQ(torchrun.attempt, "2");

  const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  EXPECT_TRUE(env_of(mpirun).mpi);
  EXPECT_EQ(env_of(mpirun).rank, 1);
  EXPECT_EQ(env_of(mpirun).master_address, "");

  const LaunchEnv slurm = env_of({{"SLURM_PROCID", "5"},
                                  {"SLURM_STEP_NUM_TASKS", "16"},
                                  {"SLURM_LOCALID", "1"},
                                  {"SLURM_STEP_NODELIST", "gpu[07-10]"},
                                  {"SLURM_JOB_ID", "1234567"}});
  EXPECT_EQ(slurm.rank, 5);
  EXPECT_EQ(slurm.size, 16);
  EXPECT_EQ(slurm.local_rank, 1);
  EXPECT_EQ(slurm.master_address, "gpu07");
  EXPECT_EQ(slurm.master_port, 24567);
  EXPECT_FALSE(slurm.mpi);

  const LaunchEnv intel = env_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}});
  EXPECT_EQ(intel.rank, 1);
  EXPECT_EQ(intel.master_address, "10.0.0.1");
}

TEST(LaunchEnv, RejectsContradictoryVariables) {
  EXPECT_NE(problem_of({{"WORLD_SIZE", "2"}}).find("WORLD_SIZE = '2' is set, but RANK is not"),
            std::string::npos);
  for (const char* one : {"1", ""}) EXPECT_EQ(env_of({{"WORLD_SIZE", one}}).size, 1);
  EXPECT_NE(problem_of({{"RANK", "1"}}).find("RANK = '1' is set, but WORLD_SIZE is not"), std::string::npos);
  EXPECT_EQ(env_of({{"RANK", "0"}}).size, 1);
  EXPECT_NE(problem_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).find("RANK = '2' is not a number from 0 to 1"),
            std::string::npos);
  EXPECT_NE(problem_of({{"RANK", "0"}, {"WORLD_SIZE", "two"}}).find("WORLD_SIZE = 'two'"), std::string::npos);
  EXPECT_NE(problem_of({{"TERATRON_BACKEND", "gloo"}}).find("threads, processes, mpi, nccl"),
            std::string::npos);
}

TEST(LaunchEnv, FindsTheFirstHostOfANodeList) {
  for (const auto& [list, first] : Variables{{"a", "a"},
                                             {"a,b", "a"},
                                             {"n[03-05,9],x", "n03"},
                                             {"n[7]", "n7"},
                                             {"n[1,3]-ib,x[2-4]", "n1-ib"},
                                             {"login,n[1-2]", "login"}}) {
    EXPECT_EQ(first_host(list), first) << list;
  }
}

TEST(LaunchEnv, BackendsMustFitTheDevice) {
  LaunchEnv env{.size = 2, .master_address = "127.0.0.1"};
  EXPECT_EQ(choose_backend(env, {}), Backend::processes);
  EXPECT_EQ(choose_backend(env, {.gpu = 0}), Backend::nccl);
  env.backend = Backend::nccl;
  EXPECT_THROW(choose_backend(env, {}), UserError);
  env.backend = Backend::threads;
  EXPECT_THROW(choose_backend(env, {.gpu = 0}), UserError);
  EXPECT_THROW(run_world({.size = 2, .backend = Backend::processes}, {}, [](World&) {}), UserError)
      << "no rendezvous address";
}

std::string fault_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.exit_code(), ExitCode::retryable);
    return fault.what();
  }
  return "no fault";
}

TEST(Rendezvous, NamesMissingRanks) {
  const FileDescriptor free = listen_on("127.0.0.1", 0);
  const int port = port_of(free);
  const LaunchEnv first{.size = 3, .master_address = "localhost", .master_port = port};
  const auto busy = fault_of([&] { Rendezvous(first, std::chrono::milliseconds(300)); });
  EXPECT_NE(busy.find(fmt::format("cannot listen on 127.0.0.1:{}: Address already in use", port)),
            std::string::npos)
      << busy;

  LaunchEnv alone{.size = 3, .master_address = "127.0.0.1", .master_port = 0};
  FileDescriptor listener = listen_on("127.0.0.1", 0);
  alone.master_port = port_of(listener);
  alone.store_listen_fd = listener.release();
  const auto missing =
      fault_of([&] { Rendezvous(alone, std::chrono::milliseconds(300)).all_gather("here"); });
  EXPECT_NE(missing.find(
                fmt::format("ranks 1, 2 of 3 did not join at 127.0.0.1:{} within 0.3 s", alone.master_port)),
            std::string::npos)
      << missing;
}

/// The error of each rank when `others` join rank 0 of three.
std::vector<std::string> errors_at_start(std::vector<LaunchEnv> others) {
  FileDescriptor listener = listen_on("127.0.0.1", 0);
  const int port = port_of(listener);
  others.insert(others.begin(), LaunchEnv{.size = 3, .store_listen_fd = listener.release()});
  std::vector<std::string> errors(others.size());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < others.size(); ++i) {
    ranks.emplace_back([&, env = others[i], i]() mutable {
      env.master_address = "127.0.0.1";
      env.master_port = port;
      try {
        Rendezvous(env, std::chrono::seconds(20)).all_gather(fmt::format("i am {}", i));
      } catch (const std::exception& error) {
        errors[i] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

TEST(Rendezvous, ReportsInconsistentStartsOnAllRanks) {
  for (const std::string& error : errors_at_start({{.rank = 1, .size = 3}, {.rank = 2, .size = 4}})) {
    EXPECT_EQ(
        error,
        "ranks: rank 2 was started as one of 4 ranks, rank 0 as one of 3. Start all machines with the same "
        "--nnodes and --nproc-per-node, each with a different --node-rank.");
  }
  for (const std::string& error : errors_at_start({{.rank = 1, .size = 3}, {.rank = 1, .size = 3}})) {
    EXPECT_NE(error.find("rank 1 of 3 was started twice"), std::string::npos) << error;
  }
}

/// Another program uses the port: one that never answers, and one that closes connections.
TEST(Rendezvous, NamesTheAddressOfAnotherProgram) {
  const FileDescriptor silent = listen_on("127.0.0.1", 0);
  LaunchEnv second{.rank = 1, .size = 2, .master_address = "127.0.0.1", .master_port = port_of(silent)};
  const auto expect_fault = [&] {
    testing::internal::CaptureStderr();
    const std::string fault = fault_of([&] { Rendezvous(second, std::chrono::milliseconds(300)); });
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_NE(fault.find(fmt::format("the program at 127.0.0.1:{} did not answer rank 1 as rank 0 would "
                                     "within 0.3 s. Check MASTER_ADDR and MASTER_PORT",
                                     second.master_port)),
              std::string::npos)
        << fault;
  };
  expect_fault();
  const FileDescriptor closing = listen_on("127.0.0.1", 0);
  second.master_port = port_of(closing);
  std::atomic<bool> done = false;
  std::thread stranger([&] {
    while (!done) {
      pollfd polled{closing.get(), POLLIN, 0};
      if (poll(&polled, 1, 50) > 0) close(accept(closing.get(), nullptr, nullptr));
    }
  });
  expect_fault();
  done = true;
  stranger.join();
}

TEST(Rendezvous, NamesTheAddressWhereNothingListens) {
  int port = 0;
  {
    const FileDescriptor closed = listen_on("127.0.0.1", 0);
    port = port_of(closed);
  }
  const LaunchEnv second{.rank = 1, .size = 2, .master_address = "127.0.0.1", .master_port = port};
  const auto refused = fault_of([&] { Rendezvous(second, std::chrono::milliseconds(300)); });
  EXPECT_NE(refused.find(fmt::format("rank 1 could not connect to 127.0.0.1:{}", port)), std::string::npos)
      << refused;
  const LaunchEnv nowhere{
      .rank = 1, .size = 2, .master_address = "no-such-host.invalid", .master_port = port};
  const auto unknown = fault_of([&] { Rendezvous(nowhere, std::chrono::milliseconds(300)); });
  EXPECT_NE(unknown.find("MASTER_ADDR 'no-such-host.invalid' does not resolve"), std::string::npos)
      << unknown;
}

}  // namespace
}  // namespace teratron
