// The worlds that tests of communication run in: rank threads and socket-connected ranks of this process; or,
// when the test program itself was started by a launcher, that job:
//
//   teratron launch --nproc-per-node 2 -- build/release/teratron/comm/comm_test --gtest_filter='Worlds*'
//   mpirun -np 2 build/release/teratron/comm/comm_test --gtest_filter='Worlds*'
//
// On a machine with GPUs the job's tensors are on them and go over NCCL.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "teratron/comm/host/transport.h"
#include "teratron/comm/mesh/mesh.h"

namespace teratron {

/// Runs `body` in each kind of world with the mesh built (dp is 1 unless given). In a launched job whose size
/// is another than the mesh's the test is skipped.
void on_worlds(MeshOptions options, const std::function<void(const Mesh&)>& body);

/// Runs `body` as the ranks of a job, each in a thread, that are connected by sockets. When one throws, the
/// others end too, and the first exception is rethrown.
void run_over_sockets(int64_t ranks, const std::function<void(World&)>& body,
                      std::chrono::milliseconds timeout = std::chrono::minutes(1));

/// The message of the Fault that a job of rank threads (of ranks over sockets) ends in when each runs `body` with
/// the group of all, which must come from all being told and not from a hang; "no fault" if there is none.
using RankBody = std::function<void(World&, Communicator&)>;
std::string fault_over_threads(int64_t ranks, const RankBody& body,
                               std::chrono::milliseconds timeout = std::chrono::minutes(1));
std::string fault_over_sockets(int64_t ranks, const RankBody& body,
                               std::chrono::milliseconds timeout = std::chrono::minutes(1));
/// The ends of ranks that are connected by sockets, for tests that take the part of a rank themselves.
std::vector<std::unique_ptr<Wire>> connected_wires(int64_t ranks);
/// Sums over the group and waits for it.
void sum(Communicator& group, at::Tensor x);

/// Numbers of ranks that are worth a test here.
std::vector<int64_t> test_sizes();
/// `tensor` on the device of the test.
at::Tensor here(const at::Tensor& tensor);
/// The results of a world on GPUs may differ from those in rank order by rounding.
bool sums_are_exact();
/// Whether `tensor`, from any device, has these values: to the bit, or within rounding of its type where the
/// sums of this world are not exact.
bool same_values(const at::Tensor& tensor, const at::Tensor& expected);

}  // namespace teratron
