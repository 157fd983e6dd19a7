// Worlds for communication tests: rank threads and ranks connected by sockets, in this process. If a launcher
// started the test program, the tests run in that job instead:
//
//   teratron launch --nproc-per-node 2 -- build/release/teratron/comm/comm_test --gtest_filter='Worlds*'
//   mpirun -np 2 build/release/teratron/comm/comm_test --gtest_filter='Worlds*'
//
// On a machine with GPUs the job's tensors are on them and use NCCL.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/comm/transport/transport.h"

namespace teratron {

/// Runs `body` in each kind of world with the mesh (dp defaults to 1). In a launched job of another size,
/// skips the test.
void on_worlds(MeshOptions options, const std::function<void(const Mesh&)>& body);

/// Runs `body` on ranks in threads of this process that are connected by sockets. If one throws, all end and
/// the first exception is rethrown.
void run_over_sockets(int64_t ranks, const std::function<void(World&)>& body,
                      std::chrono::milliseconds timeout = std::chrono::minutes(1));

/// Runs `body` with the group of all ranks, as threads or over sockets, and returns the message of the Fault
/// that the job ends with; "no fault" if there is none.
using RankBody = std::function<void(World&, Communicator&)>;
std::string fault_over_threads(int64_t ranks, const RankBody& body,
                               std::chrono::milliseconds timeout = std::chrono::minutes(1));
std::string fault_over_sockets(int64_t ranks, const RankBody& body,
                               std::chrono::milliseconds timeout = std::chrono::minutes(1));
/// The transports of ranks connected by sockets, for tests that play a rank themselves.
std::vector<std::unique_ptr<Transport>> connected_transports(int64_t ranks);
/// A blocking all_reduce.
void sum(Communicator& group, at::Tensor x);

/// World sizes to test: the launched job's, else 1 to 4.
std::vector<int64_t> test_sizes();
/// `tensor` on the device under test.
at::Tensor to_test_device(const at::Tensor& tensor);
/// False on GPUs, where sums are not in rank order.
bool sums_are_exact();
/// Whether `tensor` (on any device) equals `expected`: bitwise, or within rounding if sums are not exact.
bool same_values(const at::Tensor& tensor, const at::Tensor& expected);

}  // namespace teratron
