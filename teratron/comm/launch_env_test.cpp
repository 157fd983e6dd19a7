#include "teratron/comm/launch_env.h"

#include <atomic>
#include <map>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/comm/host/socket_transport.h"
#include "teratron/comm/host/store.h"
#include "teratron/comm/world.h"

namespace teratron {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch_of(const Variables& variables) {
  return read_launch([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string problem_of(const Variables& variables) {
  try {
    launch_of(variables);
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    return error.what();
  }
  return "no error";
}

TEST(Launch, WithoutVariablesIsOneRank) {
  const Launch launch = launch_of({{"PATH", "/bin"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.rank, 0);
}

TEST(Launch, ReadsTheVariablesOfEveryLauncher) {
  const Launch torchrun = launch_of({{"RANK", "3"},
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
  EXPECT_TRUE(torchrun.store_runs);
  EXPECT_EQ(torchrun.attempt, "2");

  const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  EXPECT_TRUE(launch_of(mpirun).mpi);
  EXPECT_EQ(launch_of(mpirun).rank, 1);
  EXPECT_EQ(launch_of(mpirun).master_address, "");

  const Launch slurm = launch_of({{"SLURM_PROCID", "5"},
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

  const Launch intel = launch_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}});
  EXPECT_EQ(intel.rank, 1);
  EXPECT_EQ(intel.master_address, "10.0.0.1");
}

TEST(Launch, RefusesVariablesThatMakeNoSense) {
  EXPECT_NE(problem_of({{"WORLD_SIZE", "2"}}).find("WORLD_SIZE = '2' is set, but RANK is not"),
            std::string::npos);
  for (const char* one : {"1", ""}) EXPECT_EQ(launch_of({{"WORLD_SIZE", one}}).size, 1);
  EXPECT_NE(problem_of({{"RANK", "1"}}).find("RANK = '1' is set, but WORLD_SIZE is not"), std::string::npos);
  EXPECT_EQ(launch_of({{"RANK", "0"}}).size, 1);
  EXPECT_NE(problem_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).find("RANK = '2' is not a number from 0 to 1"),
            std::string::npos);
  EXPECT_NE(problem_of({{"RANK", "0"}, {"WORLD_SIZE", "two"}}).find("WORLD_SIZE = 'two'"), std::string::npos);
  EXPECT_NE(problem_of({{"TERATRON_BACKEND", "gloo"}}).find("threads, processes, mpi, nccl"),
            std::string::npos);
}

TEST(Launch, FindsTheFirstHostOfACompressedList) {
  for (const auto& [list, first] : Variables{{"a", "a"},
                                             {"a,b", "a"},
                                             {"n[03-05,9],x", "n03"},
                                             {"n[7]", "n7"},
                                             {"n[1,3]-ib,x[2-4]", "n1-ib"},
                                             {"login,n[1-2]", "login"}}) {
    EXPECT_EQ(first_host(list), first) << list;
  }
}

TEST(Launch, BackendsMustFitTheDevice) {
  Launch launch{.size = 2, .master_address = "127.0.0.1"};
  EXPECT_EQ(choose_backend(launch, {}), Backend::processes);
  EXPECT_EQ(choose_backend(launch, {.gpu = 0}), Backend::nccl);
  launch.backend = Backend::nccl;
  EXPECT_THROW(choose_backend(launch, {}), UserError);
  launch.backend = Backend::threads;
  EXPECT_THROW(choose_backend(launch, {.gpu = 0}), UserError);
  EXPECT_THROW(run_world({.size = 2, .backend = Backend::processes}, {}, [](World&) {}), UserError)
      << "nothing says where they meet";
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

TEST(MeetingPoint, NamesTheRanksThatDoNotCome) {
  const Descriptor free = listen_on("127.0.0.1", 0);
  const int port = port_of(free);
  const Launch first{.size = 3, .master_address = "localhost", .master_port = port};
  const auto busy = fault_of([&] { MeetingPoint(first, std::chrono::milliseconds(300)); });
  EXPECT_NE(busy.find(fmt::format("cannot listen on 127.0.0.1:{}: Address already in use", port)),
            std::string::npos)
      << busy;

  Launch alone{.size = 3, .master_address = "127.0.0.1", .master_port = 0};
  Descriptor listener = listen_on("127.0.0.1", 0);
  alone.master_port = port_of(listener);
  alone.store_listener = listener.release();
  const auto missing =
      fault_of([&] { MeetingPoint(alone, std::chrono::milliseconds(300)).exchange("here"); });
  EXPECT_NE(missing.find(
                fmt::format("ranks 1, 2 of 3 did not come to 127.0.0.1:{} within 0.3 s", alone.master_port)),
            std::string::npos)
      << missing;
}

/// What ranks are told that meet as `others` of rank 0 of three.
std::vector<std::string> told_at_start(std::vector<Launch> others) {
  Descriptor listener = listen_on("127.0.0.1", 0);
  const int port = port_of(listener);
  others.insert(others.begin(), Launch{.size = 3, .store_listener = listener.release()});
  std::vector<std::string> told(others.size());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < others.size(); ++i) {
    ranks.emplace_back([&, launch = others[i], i]() mutable {
      launch.master_address = "127.0.0.1";
      launch.master_port = port;
      try {
        MeetingPoint(launch, std::chrono::seconds(20)).exchange(fmt::format("i am {}", i));
      } catch (const std::exception& error) {
        told[i] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return told;
}

TEST(MeetingPoint, TellsAllRanksOfMachinesThatWereStartedWrong) {
  for (const std::string& told : told_at_start({{.rank = 1, .size = 3}, {.rank = 2, .size = 4}})) {
    EXPECT_EQ(
        told,
        "ranks: rank 2 was started as one of 4 ranks, rank 0 as one of 3. Start all machines with the same "
        "--nnodes and --nproc-per-node, each with a --node-rank of its own.");
  }
  for (const std::string& told : told_at_start({{.rank = 1, .size = 3}, {.rank = 1, .size = 3}})) {
    EXPECT_NE(told.find("rank 1 of 3 was started twice"), std::string::npos) << told;
  }
}

/// Somebody listens there who is none of ours: one who says nothing, and one who hangs up.
TEST(MeetingPoint, NamesThePlaceWhereAStrangerIs) {
  const Descriptor silent = listen_on("127.0.0.1", 0);
  Launch second{.rank = 1, .size = 2, .master_address = "127.0.0.1", .master_port = port_of(silent)};
  const auto expect_told = [&] {
    testing::internal::CaptureStderr();
    const std::string fault = fault_of([&] { MeetingPoint(second, std::chrono::milliseconds(300)); });
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_NE(fault.find(fmt::format("whoever listens at 127.0.0.1:{} did not answer rank 1 as rank 0 would "
                                     "within 0.3 s. Check MASTER_ADDR and MASTER_PORT",
                                     second.master_port)),
              std::string::npos)
        << fault;
  };
  expect_told();
  const Descriptor rude = listen_on("127.0.0.1", 0);
  second.master_port = port_of(rude);
  std::atomic<bool> done = false;
  std::thread stranger([&] {
    while (!done) {
      pollfd polled{rude.get(), POLLIN, 0};
      if (poll(&polled, 1, 50) > 0) close(accept(rude.get(), nullptr, nullptr));
    }
  });
  expect_told();
  done = true;
  stranger.join();
}

TEST(MeetingPoint, NamesThePlaceWhereNobodyIs) {
  int port = 0;
  {
    const Descriptor closed = listen_on("127.0.0.1", 0);
    port = port_of(closed);
  }
  const Launch second{.rank = 1, .size = 2, .master_address = "127.0.0.1", .master_port = port};
  const auto nobody = fault_of([&] { MeetingPoint(second, std::chrono::milliseconds(300)); });
  EXPECT_NE(nobody.find(fmt::format("rank 1 found nobody at 127.0.0.1:{}", port)), std::string::npos)
      << nobody;
  const Launch nowhere{.rank = 1, .size = 2, .master_address = "no-such-host.invalid", .master_port = port};
  const auto unknown = fault_of([&] { MeetingPoint(nowhere, std::chrono::milliseconds(300)); });
  EXPECT_NE(unknown.find("MASTER_ADDR 'no-such-host.invalid' was not found"), std::string::npos) << unknown;
}

}  // namespace
}  // namespace teratron
