// Two-rank communicators for the messages between neighbours of a group. Internal to nccl_communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "teratron/comm/communicator.h"
#include "teratron/comm/nccl/nccl_comm.h"

namespace teratron {

/// One link per direction, so that no message waits for one in another direction.
class NcclLinks {
 public:
  using Ends = std::pair<int64_t, int64_t>;  // sender and receiver, ranks of the group
  using Enqueue = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;
  /// Calls `enqueue` as work of `comm`, after what the caller's current stream holds.
  using Issue = std::function<void(const NcclComm& comm, const Enqueue& enqueue)>;

  NcclLinks(int64_t rank, int64_t size) : rank_(rank), size_(size) {}
  /// The links to open before these messages. In a group of two ranks: the directions that they are the first
  /// to use. In larger groups: both directions to both neighbours, at the first call.
  std::vector<Ends> missing(const std::vector<P2POp>& ops) const;
  /// Opens links and sends a byte over each: NCCL connects two ranks at their first message, which must not
  /// make one wait for the other later. Collective over the ranks at the other ends. `hosts`: the group.
  void open(const std::vector<Ends>& ends, BytePeers& hosts, const ProcessBackend& backend,
            const Issue& issue);
  /// Null if these ranks have no link.
  const NcclComm* find(int64_t from, int64_t to) const;
  /// The first error that NCCL reports; "" if none.
  std::string async_error() const;
  void close() { links_.clear(); }

 private:
  const int64_t rank_, size_;
  NcclComm::List links_;
  std::vector<Ends> ends_;  // of each link
};

}  // namespace teratron
