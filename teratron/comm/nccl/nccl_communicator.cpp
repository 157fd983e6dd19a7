#include "teratron/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/log.h"
#include "teratron/comm/host/process_communicator.h"
#include "teratron/comm/host/tensor_call.h"
#include "teratron/kernels/common/reduce.h"

namespace teratron {
namespace {

constexpr size_t kWorthPushing = 1048576;  // bytes of a part; meeting twice costs as much as smaller ones

using Clock = std::chrono::steady_clock;

ncclDataType_t nccl_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kHalf:
      return ncclFloat16;
    case at::kLong:
      return ncclInt64;
    case at::kInt:
      return ncclInt32;
    case at::kByte:
    case at::kBool:
      return ncclUint8;
    default:
      break;
  }
  TERATRON_ASSERT(false, "no reduction of {}", c10::toString(type));
}

ncclRedOp_t nccl_op(ReduceOp op, at::ScalarType type) {
  const bool flag = type == at::kBool;  // bytes of 0 and 1
  switch (op) {
    case ReduceOp::sum:
      return flag ? ncclMax : ncclSum;
    case ReduceOp::avg:
      TERATRON_ASSERT(!flag, "an average of flags");
      return ncclAvg;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::min:
      return ncclMin;
  }
  TERATRON_ASSERT(false);
}

/// Sends and receives between `peers` equal parts, as one operation.
ncclResult_t send_receive_all(const at::Tensor& output, const at::Tensor& input, int64_t peers,
                              ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = input.nbytes() / peers;
  const auto* from = static_cast<const std::byte*>(input.const_data_ptr());
  auto* to = static_cast<std::byte*>(output.data_ptr());
  check_nccl(ncclGroupStart(), comm, "ncclGroupStart");
  for (int peer = 0; peer < peers; ++peer) {
    check_nccl(ncclSend(from + peer * bytes, bytes, ncclUint8, peer, comm, stream), comm, "ncclSend");
    check_nccl(ncclRecv(to + peer * bytes, bytes, ncclUint8, peer, comm, stream), comm, "ncclRecv");
  }
  return ncclGroupEnd();
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<ProcessRanks> ranks, const std::vector<int64_t>& group)
    : ranks_(std::move(ranks)),
      meeting_(ranks_->meeting(group)),
      hosts_(process_communicator(ranks_, group)) {}

NcclChannel& NcclCommunicator::main_channel() {
  if (!main_) {
    const std::string mine = rank() == 0 ? to_bytes(new_channel_id()) : "";
    const ncclUniqueId id = channel_id_from(hosts_->all_gather_bytes(mine)[0]);
    main_ =
        std::move(NcclChannel::join({{id, static_cast<int>(size()), static_cast<int>(rank())}}, *ranks_)[0]);
  }
  return *main_;
}

/// Joins the channels to and from both neighbours, and sends a byte over each: NCCL connects two ranks when
/// they first speak, which must not make one wait for the other later.
void NcclCommunicator::make_ring() {
  const int64_t n = size();
  const int64_t next = (rank() + 1) % n, previous = (rank() + n - 1) % n;
  // Of two ranks each is the other's next and previous.
  const std::string second = n == 2 ? "" : to_bytes(new_channel_id());
  const auto all = hosts_->all_gather_bytes(to_bytes(new_channel_id()) + second);
  std::vector<NcclChannel::Plan> plans;
  const std::set<int64_t> neighbours = {next, previous};  // the same rank where there are two
  for (const int64_t peer : neighbours) {
    for (const auto& [from, to] : {std::pair(rank(), peer), std::pair(peer, rank())}) {
      // A rank's first identity is that of the channel to its next rank, its second to the one before.
      const size_t offset = to == (from + 1) % n ? 0 : sizeof(ncclUniqueId);
      plans.push_back({channel_id_from(all[from], offset), 2, from == rank() ? 0 : 1});
      ring_places_.emplace_back(from, to);
    }
  }
  ring_ = NcclChannel::join(plans, *ranks_);
  const at::Tensor byte =
      at::zeros({static_cast<int64_t>(ring_.size())}, at::device(at::kCUDA).dtype(at::kByte));
  const auto send_bytes = [&](ncclComm_t, cudaStream_t) {
    auto* place = static_cast<std::byte*>(byte.data_ptr());
    check_nccl(ncclGroupStart(), nullptr, "ncclGroupStart");
    for (size_t i = 0; i < ring_.size(); ++i, ++place) {
      const ncclComm_t communicator = ring_[i]->communicator();
      const c10::cuda::CUDAStream& stream = ring_[i]->stream();
      ready_.block(stream);
      const bool sends = ring_places_[i].first == rank();
      check_nccl(sends ? ncclSend(place, 1, ncclUint8, 1, communicator, stream)
                       : ncclRecv(place, 1, ncclUint8, 0, communicator, stream),
                 communicator, "the first message");
    }
    return ncclGroupEnd();
  };
  issue(*ring_[0], {.call = {.operation = "first message"}, .number = {}, .since = Clock::now()}, send_bytes);
  for (const auto& channel : ring_) {
    c10::cuda::CUDAEvent done;
    done.record(channel->stream());
    done.block(c10::cuda::getCurrentCUDAStream());
  }
}

NcclChannel& NcclCommunicator::channel_for(int64_t from, int64_t to) {
  const auto place = std::find(ring_places_.begin(), ring_places_.end(), std::pair(from, to));
  return place == ring_places_.end() ? main_channel() : *ring_[place - ring_places_.begin()];
}

NcclCommunicator::Event NcclCommunicator::issue(const NcclChannel& channel, Pending pending,
                                                const Enqueue& enqueue) {
  Pending* place = nullptr;
  {
    const Lock lock(pending_mutex_);
    place = &pending_.emplace_back(std::move(pending));  // stays where it is while others come and go
  }
  ready_.record();
  ready_.block(channel.stream());
  const ncclResult_t result = enqueue(channel.communicator(), channel.stream());
  if (result != ncclSuccess) {
    ranks_->check();  // the loss of a rank that has told why it left is no error of its own
    check_nccl(result, channel.communicator(), in_words(*place).c_str());
  }
  auto done = std::make_shared<c10::cuda::CUDAEvent>();
  done->record(channel.stream());
  const Lock lock(pending_mutex_);
  place->done = done;
  return done;
}

Work NcclCommunicator::collective(const Call& call, std::vector<at::Tensor> tensors, const Enqueue& enqueue) {
  fault_point("comm.collective");
  const int64_t number = meeting_->record(call);
  const Lock lock(mutex_);
  TERATRON_ASSERT(!closed_);
  const Event done = issue(main_channel(), {.call = call, .number = number, .since = Clock::now()}, enqueue);
  return Work([done, ranks = ranks_, keep = std::move(tensors)] {
    ranks->check();
    done->block(c10::cuda::getCurrentCUDAStream());
  });
}

Work NcclCommunicator::all_reduce(at::Tensor tensor, ReduceOp op) {
  if (tensor.is_cpu()) return hosts_->all_reduce(tensor, op);
  return collective(call_of(reduce_name("all_reduce", op), tensor), {tensor},
                    [=](ncclComm_t comm, cudaStream_t stream) {
                      return ncclAllReduce(tensor.data_ptr(), tensor.data_ptr(), tensor.numel(),
                                           nccl_type(tensor.scalar_type()), nccl_op(op, tensor.scalar_type()),
                                           comm, stream);
                    });
}

/// Null where copy engines do not reach all ranks. A new window is a collective of its own, as others are.
NcclWindows* NcclCommunicator::windows() {
  if (!windows_) {
    windows_.emplace(main_channel().communicator(), *hosts_, [this](size_t bytes, const auto& make) {
      const Call call{.operation = "window", .dtype = "Byte", .shape = {static_cast<int64_t>(bytes)}};
      issue(main_channel(), {.call = call, .number = meeting_->record(call), .since = Clock::now()},
            [&](ncclComm_t, cudaStream_t) {
              make();
              return ncclSuccess;
            });
    });
    if (!windows_->usable() && rank() == 0) {
      notice(
          "{} share no windows of NCCL (other hosts, or NCCL_WIN_ENABLE=0): their messages run beside no "
          "product",
          ranks_in_words(meeting_->ranks()));
    }
  }
  return windows_->usable() ? &*windows_ : nullptr;
}

/// Null where windows are, and where NCCL's own reduce-scatter is as good or the only one.
NcclPush* NcclCommunicator::push_for(const at::Tensor& output, ReduceOp op) {
  const bool adds = op == ReduceOp::sum || op == ReduceOp::avg;
  if (!adds || !at::isFloatingType(output.scalar_type()) || output.nbytes() < kWorthPushing ||
      size() > max_parts) {
    return nullptr;
  }
  const Lock lock(mutex_);
  TERATRON_ASSERT(!closed_);
  if (!push_ && windows()) push_.emplace(*windows(), main_channel().communicator(), rank(), size());
  return push_ ? &*push_ : nullptr;
}

Work NcclCommunicator::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) {
  if (output.is_cpu()) return hosts_->reduce_scatter(output, input, op);
  return reduce_scatter_made(std::move(output), std::move(input), op, [](int64_t, int64_t) {});
}

Work NcclCommunicator::reduce_scatter_made(at::Tensor output, at::Tensor input, ReduceOp op,
                                           const MakeParts& make) {
  if (output.is_cpu()) return hosts_->reduce_scatter_made(output, input, op, make);
  check_parts(input, output, size());
  const Call call = call_of(reduce_name("reduce_scatter", op), output);
  if (NcclPush* const push = push_for(output, op)) {
    return collective(call, {output, input}, [&](ncclComm_t, cudaStream_t) {
      const c10::cuda::CUDAStream& stream = main_->stream();
      return push->reduce_scatter(output, input, op, stream, [&](int64_t part) {
        make(part, part + 1);
        ready_.record();
        ready_.block(stream);
      });
    });
  }
  make(0, size());
  return collective(call, {output, input}, [=](ncclComm_t comm, cudaStream_t stream) {
    return ncclReduceScatter(input.const_data_ptr(), output.data_ptr(), output.numel(),
                             nccl_type(output.scalar_type()), nccl_op(op, output.scalar_type()), comm,
                             stream);
  });
}

Work NcclCommunicator::all_gather(at::Tensor output, at::Tensor input) {
  if (output.is_cpu()) return hosts_->all_gather(output, input);
  check_parts(output, input, size());
  return collective(call_of("all_gather", input), {output, input}, [=](ncclComm_t comm, cudaStream_t stream) {
    return ncclAllGather(input.const_data_ptr(), output.data_ptr(), input.nbytes(), ncclUint8, comm, stream);
  });
}

at::Tensor NcclCommunicator::gather_output(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (options.device().is_cpu()) return hosts_->gather_output(sizes, options);
  const Lock lock(mutex_);
  TERATRON_ASSERT(!closed_);
  NcclWindows* const shared = windows();
  return shared ? shared->empty(sizes, options) : at::empty(sizes, options);
}

Work NcclCommunicator::broadcast(at::Tensor tensor, int64_t root) {
  if (tensor.is_cpu()) return hosts_->broadcast(tensor, root);
  TERATRON_ASSERT(root >= 0 && root < size(), "root {} of {}", root, size());
  return collective(call_of(fmt::format("broadcast(root {})", root), tensor), {tensor},
                    [=](ncclComm_t comm, cudaStream_t stream) {
                      return ncclBroadcast(tensor.data_ptr(), tensor.data_ptr(), tensor.nbytes(), ncclUint8,
                                           static_cast<int>(root), comm, stream);
                    });
}

Work NcclCommunicator::all_to_all(at::Tensor output, at::Tensor input) {
  if (output.is_cpu()) return hosts_->all_to_all(output, input);
  const int64_t n = size();
  TERATRON_ASSERT(output.is_contiguous() && output.nbytes() == input.nbytes() && input.numel() % n == 0,
                  "{} elements into {} parts", input.numel(), n);
  return collective(call_of("all_to_all", input), {output, input}, [=](ncclComm_t comm, cudaStream_t stream) {
    return send_receive_all(output, input, n, comm, stream);
  });
}

namespace {

ncclResult_t enqueue_message(const PointToPoint& message, int there, ncclComm_t comm, cudaStream_t stream) {
  const at::Tensor& tensor = message.tensor;
  return message.send ? ncclSend(tensor.const_data_ptr(), tensor.nbytes(), ncclUint8, there, comm, stream)
                      : ncclRecv(tensor.data_ptr(), tensor.nbytes(), ncclUint8, there, comm, stream);
}

Call message_call(const PointToPoint& message) {
  return call_of(fmt::format("{} {}", message.send ? "send to place" : "receive from place", message.peer),
                 message.tensor);
}

}  // namespace

Work NcclCommunicator::exchange(std::vector<PointToPoint> messages) {
  if (messages.empty()) return {};
  if (messages[0].tensor.is_cpu()) return hosts_->exchange(std::move(messages));
  const Lock lock(mutex_);
  ranks_->check();
  TERATRON_ASSERT(!closed_);
  if (ring_.empty()) make_ring();
  std::vector<Event> events;
  std::vector<PointToPoint> shared;  // between ranks that are no neighbours
  for (const PointToPoint& message : messages) {
    const int64_t peer = message.peer;
    TERATRON_ASSERT(peer >= 0 && peer < size() && peer != rank(), "peer {} of {}", peer, size());
    const NcclChannel& channel = message.send ? channel_for(rank(), peer) : channel_for(peer, rank());
    if (&channel == main_.get()) {
      shared.push_back(message);
      continue;
    }
    const auto enqueue = [&](ncclComm_t comm, cudaStream_t stream) {
      return enqueue_message(message, message.send ? 1 : 0, comm, stream);
    };
    events.push_back(
        issue(channel, {.call = message_call(message), .number = {}, .since = Clock::now()}, enqueue));
  }
  if (!shared.empty()) {
    // As one group: on a channel of their own order a send could wait for a receive behind it.
    const auto enqueue = [&](ncclComm_t comm, cudaStream_t stream) {
      check_nccl(ncclGroupStart(), comm, "ncclGroupStart");
      for (const PointToPoint& message : shared) {
        check_nccl(enqueue_message(message, static_cast<int>(message.peer), comm, stream), comm, "a message");
      }
      return ncclGroupEnd();
    };
    events.push_back(
        issue(*main_, {.call = message_call(shared.front()), .number = {}, .since = Clock::now()}, enqueue));
  }
  return Work([events, ranks = ranks_, keep = std::move(messages)] {
    ranks->check();
    for (const Event& event : events) event->block(c10::cuda::getCurrentCUDAStream());
  });
}

std::vector<std::string> NcclCommunicator::all_gather_bytes(const std::string& bytes) {
  return hosts_->all_gather_bytes(bytes);
}

void NcclCommunicator::barrier() {
  hosts_->barrier();
}

void NcclCommunicator::abort(const std::string& reason) {
  hosts_->abort(reason);
  close();
}

std::string NcclCommunicator::in_words(const Pending& pending) const {
  return pending.number ? meeting_->in_words(pending.call, *pending.number) : to_string(pending.call);
}

std::optional<NcclCommunicator::Pending> NcclCommunicator::oldest() {
  while (true) {
    const Lock lock(pending_mutex_);
    if (pending_.empty()) return std::nullopt;
    if (!pending_.front().done || !pending_.front().done->query()) return pending_.front();
    pending_.pop_front();
  }
}

/// Nothing while NCCL is being called: it tells the caller itself.
std::string NcclCommunicator::channel_error() {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock) return "";
  if (main_ && !main_->error().empty()) return main_->error();
  for (const auto& channel : ring_) {
    if (!channel->error().empty()) return channel->error();
  }
  return "";
}

std::optional<std::string> NcclCommunicator::trouble() {
  if (std::string error = channel_error(); !error.empty()) return error;
  const std::optional<Pending> pending = oldest();
  if (!pending || Clock::now() - pending->since <= ranks_->timeout()) return std::nullopt;
  return meeting_->overdue(in_words(*pending), pending->number);
}

void NcclCommunicator::close() {
  const Lock lock(mutex_);
  closed_ = true;
  {
    const Lock pending(pending_mutex_);
    pending_.clear();
  }
  ring_.clear();
  main_.reset();
}

}  // namespace teratron
