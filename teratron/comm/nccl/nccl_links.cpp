#include "teratron/comm/nccl/nccl_links.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <c10/cuda/CUDAEvent.h>

namespace teratron {

std::vector<NcclLinks::Ends> NcclLinks::missing(const std::vector<P2POp>& ops) const {
  if (size_ > 2) {
    if (!links_.empty()) return {};
    const int64_t next = (rank_ + 1) % size_, previous = (rank_ + size_ - 1) % size_;
    return {{rank_, next}, {next, rank_}, {rank_, previous}, {previous, rank_}};
  }
  std::set<Ends> ends;
  for (const P2POp& op : ops) ends.insert(op.send ? Ends(rank_, op.peer) : Ends(op.peer, rank_));
  for (const Ends& open : ends_) ends.erase(open);
  return {ends.begin(), ends.end()};
}

void NcclLinks::open(const std::vector<Ends>& ends, BytePeers& hosts, const ProcessBackend& backend,
                     const Issue& issue) {
  std::vector<NcclComm::InitOptions> options(ends.size());
  for (size_t i = 0; i < ends.size(); ++i) {
    options[i] = {.id = {}, .size = 2, .rank = ends[i].first == rank_ ? 0 : 1};
    if (ends[i].first != rank_) continue;
    options[i].id = new_unique_id();
    hosts.send_bytes(ends[i].second, to_bytes(options[i].id));
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].second == rank_) options[i].id = unique_id_from(hosts.receive_bytes(ends[i].first));
  }
  NcclComm::List opened = NcclComm::init_all(options, backend);
  const at::Tensor bytes =
      at::zeros({static_cast<int64_t>(opened.size())}, at::device(at::kCUDA).dtype(at::kByte));
  c10::cuda::CUDAEvent zeroed;
  zeroed.record();
  issue(*opened[0], [&](ncclComm_t, cudaStream_t) {
    auto* byte = static_cast<std::byte*>(bytes.data_ptr());
    check_nccl(ncclGroupStart(), nullptr, "ncclGroupStart");
    for (size_t i = 0; i < opened.size(); ++i, ++byte) {
      const ncclComm_t comm = opened[i]->get();
      const c10::cuda::CUDAStream& stream = opened[i]->stream();
      zeroed.block(stream);
      const bool sends = ends[i].first == rank_;
      check_nccl(sends ? ncclSend(byte, 1, ncclUint8, 1, comm, stream)
                       : ncclRecv(byte, 1, ncclUint8, 0, comm, stream),
                 comm, "the first message");
    }
    return ncclGroupEnd();
  });
  for (size_t i = 0; i < opened.size(); ++i) {
    c10::cuda::CUDAEvent done;
    done.record(opened[i]->stream());
    done.block(c10::cuda::getCurrentCUDAStream());
    ends_.push_back(ends[i]);
    links_.push_back(std::move(opened[i]));
  }
}

const NcclComm* NcclLinks::find(int64_t from, int64_t to) const {
  const auto it = std::find(ends_.begin(), ends_.end(), Ends(from, to));
  return it == ends_.end() ? nullptr : links_[it - ends_.begin()].get();
}

std::string NcclLinks::async_error() const {
  std::string error;
  for (auto link = links_.begin(); error.empty() && link != links_.end(); ++link)
    error = (*link)->async_error();
  return error;
}

}  // namespace teratron
