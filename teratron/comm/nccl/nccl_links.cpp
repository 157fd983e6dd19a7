// Messages between neighbours of NcclCommunicator.
#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "teratron/comm/nccl/nccl_communicator.h"

namespace teratron {

/// Of two ranks, the directions that this batch is the first to use. Of more, at the first batch, both
/// directions to both neighbours.
std::vector<NcclCommunicator::Ends> NcclCommunicator::links_to_open(const std::vector<P2POp>& ops) const {
  if (size() > 2) {
    if (!links_.empty()) return {};
    const int64_t next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
    return {{rank(), next}, {next, rank()}, {rank(), previous}, {previous, rank()}};
  }
  std::set<Ends> ends;
  for (const P2POp& op : ops) ends.insert(op.send ? Ends(rank(), op.peer) : Ends(op.peer, rank()));
  for (const Ends& open : link_ends_) ends.erase(open);
  return {ends.begin(), ends.end()};
}

/// Initializes communicators for messages (from, to) and sends a byte over each: NCCL connects two ranks at
/// their first message, which must not make one wait for the other later.
void NcclCommunicator::open_links(const std::vector<Ends>& ends) {
  std::vector<NcclComm::InitOptions> options(ends.size());
  for (size_t i = 0; i < ends.size(); ++i) {
    options[i] = {.id = {}, .size = 2, .rank = ends[i].first == rank() ? 0 : 1};
    if (ends[i].first != rank()) continue;
    options[i].id = new_unique_id();
    host_->send_bytes(ends[i].second, to_bytes(options[i].id));
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].second == rank()) options[i].id = unique_id_from(host_->receive_bytes(ends[i].first));
  }
  NcclComm::List opened = NcclComm::init_all(options, *backend_);
  const at::Tensor bytes =
      at::zeros({static_cast<int64_t>(opened.size())}, at::device(at::kCUDA).dtype(at::kByte));
  const auto send_first_bytes = [&](ncclComm_t, cudaStream_t) {
    auto* byte = static_cast<std::byte*>(bytes.data_ptr());
    check_nccl(ncclGroupStart(), nullptr, "ncclGroupStart");
    for (size_t i = 0; i < opened.size(); ++i, ++byte) {
      const ncclComm_t comm = opened[i]->get();
      const c10::cuda::CUDAStream& stream = opened[i]->stream();
      ready_.block(stream);
      const bool sends = ends[i].first == rank();
      check_nccl(sends ? ncclSend(byte, 1, ncclUint8, 1, comm, stream)
                       : ncclRecv(byte, 1, ncclUint8, 0, comm, stream),
                 comm, "the first message");
    }
    return ncclGroupEnd();
  };
  issue(*opened[0], {.fingerprint = {.operation = "first message"}}, send_first_bytes);
  for (size_t i = 0; i < opened.size(); ++i) {
    c10::cuda::CUDAEvent done;
    done.record(opened[i]->stream());
    done.block(c10::cuda::getCurrentCUDAStream());
    link_ends_.push_back(ends[i]);
    links_.push_back(std::move(opened[i]));
  }
}

NcclComm& NcclCommunicator::comm_for(int64_t from, int64_t to) {
  const auto it = std::find(link_ends_.begin(), link_ends_.end(), Ends(from, to));
  return it == link_ends_.end() ? group_comm() : *links_[it - link_ends_.begin()];
}

}  // namespace teratron
