#include "teratron/comm/launch_env.h"

#include <map>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
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

  EXPECT_EQ(torchrun.secret, "");
  EXPECT_EQ(env_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TERATRON_JOB_SECRET", "0123456789abcdef"}}).secret,
            "0123456789abcdef");
  EXPECT_NE(problem_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TERATRON_JOB_SECRET", "short"}})
                .find("TERATRON_JOB_SECRET has 5 characters, fewer than 16"),
            std::string::npos);

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

TEST(LaunchEnv, InterfacesAndPorts) {
  const auto interface_of = [](Variables variables) {
    variables["RANK"] = "0";
    variables["WORLD_SIZE"] = "2";
    const LaunchEnv env = env_of(variables);
    return env.interface_variable + " " + env.interface;
  };
  const Variables nccl = {{"NCCL_SOCKET_IFNAME", "eth1,eno2"}, {"GLOO_SOCKET_IFNAME", "eth3"}};
  EXPECT_EQ(interface_of(nccl), "NCCL_SOCKET_IFNAME eth1,eno2");
  EXPECT_EQ(interface_of({{"NCCL_SOCKET_IFNAME", ""}, {"GLOO_SOCKET_IFNAME", "eth3"}}),
            "GLOO_SOCKET_IFNAME =eth3");
  Variables all = nccl;
  all["TERATRON_SOCKET_IFNAME"] = "ib0";
  EXPECT_EQ(interface_of(all), "TERATRON_SOCKET_IFNAME =ib0");
  EXPECT_EQ(env_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TERATRON_PORT_RANGE", "33000-33009"}}).ports,
            (PortRange{33000, 33009}));
  for (const char* range : {"33000", "33000-", "-5", "9-8", "0-5", "1-65536", "a-b", "1-2-3"}) {
    EXPECT_NE(problem_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TERATRON_PORT_RANGE", range}})
                  .find(fmt::format("TERATRON_PORT_RANGE: '{}' is not a range of ports", range)),
              std::string::npos)
        << range;
  }
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

/// 64 cores, under each launcher: by the ranks of this machine, not by those of the job.
TEST(LaunchEnv, CoresAreDividedAmongTheRanksOfThisMachine) {
  const std::vector<Variables> eight_a_host = {
      {{"RANK", "9"}, {"WORLD_SIZE", "16384"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "8"}},
      {{"OMPI_COMM_WORLD_RANK", "9"},
       {"OMPI_COMM_WORLD_SIZE", "16384"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"}},
      {{"PMI_RANK", "9"},
       {"PMI_SIZE", "16384"},
       {"MPI_LOCALRANKID", "1"},
       {"MPI_LOCALNRANKS", "8"},
       {"MASTER_ADDR", "n1"}},
      {{"SLURM_PROCID", "9"},
       {"SLURM_STEP_NUM_TASKS", "16384"},
       {"SLURM_LOCALID", "1"},
       {"SLURM_NTASKS_PER_NODE", "8"}}};
  for (const Variables& variables : eight_a_host) {
    const LaunchEnv env = env_of(variables);
    EXPECT_EQ(env.local_size, 8) << variables.begin()->first;
    EXPECT_EQ(share_of_cores(env, 64), 8);
    EXPECT_EQ(share_of_cores(env, 20), 2);
    EXPECT_EQ(share_of_cores(env, 4), 1);
    EXPECT_EQ(share_of_cores(env, 0), 1) << "a system that does not know";
  }
  EXPECT_EQ(share_of_cores(env_of({}), 64), 64);
  const Variables unknown = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
  EXPECT_EQ(share_of_cores(env_of(unknown), 64), 16) << "all ranks may be here";
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

}  // namespace
}  // namespace teratron
