#include "teratron/comm/nccl/nccl_communicator.h"

#include <utility>

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/log.h"
#include "teratron/base/tensor_dtype.h"
#include "teratron/comm/consensus.h"
#include "teratron/comm/host/process_communicator.h"
#include "teratron/comm/host/tensor_fingerprint.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;

ncclDataType_t nccl_type(at::ScalarType type) {
  static constexpr std::pair<at::ScalarType, ncclDataType_t> kTypes[] = {
      {at::kFloat, ncclFloat32}, {at::kDouble, ncclFloat64}, {at::kBFloat16, ncclBfloat16},
      {at::kHalf, ncclFloat16},  {at::kLong, ncclInt64},     {at::kInt, ncclInt32},
      {at::kByte, ncclUint8},    {at::kBool, ncclUint8}};
  for (const auto& [torch, nccl] : kTypes) {
    if (torch == type) return nccl;
  }
  TERATRON_ASSERT(false, "cannot reduce {}", spelling_of(type));
}

ncclRedOp_t nccl_op(ReduceOp op, at::ScalarType type) {
  static constexpr ncclRedOp_t kOps[] = {ncclSum, ncclAvg, ncclMax, ncclMin};
  const bool boolean = type == at::kBool;  // bytes 0 and 1
  TERATRON_ASSERT(!boolean || op != ReduceOp::avg, "cannot average booleans");
  return boolean && op == ReduceOp::sum ? ncclMax : kOps[static_cast<size_t>(op)];
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

bool is_capturing() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<ProcessBackend> backend, const std::vector<int64_t>& ranks)
    : backend_(std::move(backend)),
      group_(backend_->group(ranks)),
      host_(process_communicator(backend_, ranks)),
      links_(group_->rank(), group_->size()) {}

/// For a call that uses the communicators.
NcclCommunicator::Lock NcclCommunicator::lock_open() {
  Lock lock(mutex_);
  TERATRON_ASSERT(!closed_);
  return lock;
}

NcclComm& NcclCommunicator::group_comm() {
  if (!group_comm_) {
    const std::string own = rank() == 0 ? to_bytes(new_unique_id()) : "";
    const ncclUniqueId id = unique_id_from(host_->broadcast_bytes(own));
    group_comm_ = std::move(
        NcclComm::init_all({{id, static_cast<int>(size()), static_cast<int>(rank())}}, *backend_)[0]);
  }
  return *group_comm_;
}

/// The first use is collective. Registering a window is a recorded collective, too.
CopyEngines& NcclCommunicator::copy_engines() {
  if (copy_engines_) return *copy_engines_;
  copy_engines_.emplace(group_comm().get(), *host_, [this](size_t bytes, const auto& register_window) {
    const CollectiveFingerprint fingerprint{
        .operation = "window", .dtype = "Byte", .shape = {static_cast<int64_t>(bytes)}};
    issue(group_comm(), {.fingerprint = fingerprint, .sequence = group_->record(fingerprint)},
          [&](ncclComm_t, cudaStream_t) {
            register_window();
            return ncclSuccess;
          });
  });
  if (!copy_engines_->available() && rank() == 0) {
    notice(
        "{} have no NCCL symmetric memory (several hosts, or NCCL_WIN_ENABLE=0): their collectives do not "
        "overlap GEMMs",
        describe_ranks(group_->ranks().all()));
  }
  return *copy_engines_;
}

NcclCommunicator::Event NcclCommunicator::issue(const NcclComm& comm, PendingWork work,
                                                const Enqueue& enqueue,
                                                std::optional<c10::cuda::CUDAStream> other) {
  const c10::cuda::CUDAStream stream = other.value_or(comm.stream());
  // Events of a capture cannot be queried: watch_replay().
  PendingWork* const pending = is_capturing() ? nullptr : &pending_.add(work);
  ready_.record();
  ready_.block(stream);
  const ncclResult_t result = enqueue(comm.get(), stream);
  if (result != ncclSuccess) {
    backend_->check();  // a peer's failure is the cause of NCCL's error
    check_nccl(result, comm.get(), describe(work).c_str());
  }
  auto done = std::make_shared<c10::cuda::CUDAEvent>();
  done->record(stream);
  if (pending) pending_.set_done(*pending, done);
  return done;
}

Work NcclCommunicator::collective(const CollectiveFingerprint& fingerprint, std::vector<at::Tensor> tensors,
                                  const Enqueue& enqueue, std::optional<c10::cuda::CUDAStream> stream) {
  fault_point("comm.collective");
  const int64_t sequence = group_->record(fingerprint);
  const Lock lock = lock_open();
  const Event done = issue(group_comm(), {.fingerprint = fingerprint, .sequence = sequence}, enqueue, stream);
  return Work([done, backend = backend_, keep = std::move(tensors)] {
    backend->check();
    done->block(c10::cuda::getCurrentCUDAStream());
  });
}

Work NcclCommunicator::all_reduce(at::Tensor tensor, ReduceOp op) {
  if (tensor.is_cpu()) return host_->all_reduce(tensor, op);
  return collective(call_of(reduce_name("all_reduce", op), tensor), {tensor},
                    [=](ncclComm_t comm, cudaStream_t stream) {
                      return ncclAllReduce(tensor.data_ptr(), tensor.data_ptr(), tensor.numel(),
                                           nccl_type(tensor.scalar_type()), nccl_op(op, tensor.scalar_type()),
                                           comm, stream);
                    });
}

Work NcclCommunicator::nccl_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  return collective(call_of(reduce_name("reduce_scatter", op), output), {output, input},
                    [=](ncclComm_t comm, cudaStream_t stream) {
                      return ncclReduceScatter(input.const_data_ptr(), output.data_ptr(), output.numel(),
                                               nccl_type(output.scalar_type()),
                                               nccl_op(op, output.scalar_type()), comm, stream);
                    });
}

/// Null without symmetric memory, and where NCCL's reduce-scatter is as fast or the only one supported.
CopyEngineReduceScatter* NcclCommunicator::copy_engine_reduce_scatter(const at::Tensor& output, ReduceOp op) {
  if (!CopyEngines::suits_reduce_scatter(output, op, size())) return nullptr;
  const Lock lock = lock_open();
  return copy_engines().reduce_scatter();
}

Work NcclCommunicator::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) {
  if (output.is_cpu()) return host_->reduce_scatter(output, input, op);
  check_parts(input, output, size());
  if (CopyEngineReduceScatter* const engines = copy_engine_reduce_scatter(output, op)) {
    return collective(call_of(reduce_name("reduce_scatter", op), output), {output, input},
                      [&](ncclComm_t, cudaStream_t) {
                        return engines->reduce_scatter(output, input, op, group_comm_->stream());
                      });
  }
  return nccl_reduce_scatter(output, input, op);
}

Work NcclCommunicator::reduce_scatter_pipelined(at::Tensor output, at::Tensor input, ReduceOp op,
                                                const ProduceParts& produce) {
  if (output.is_cpu()) return host_->reduce_scatter_pipelined(output, input, op, produce);
  check_parts(input, output, size());
  if (CopyEngineReduceScatter* const engines = copy_engine_reduce_scatter(output, op)) {
    const auto enqueue = [&](ncclComm_t, cudaStream_t) {
      const c10::cuda::CUDAStream& stream = group_comm_->stream();
      return engines->reduce_scatter_produced(output, input, op, stream, [&](int64_t part) {
        produce(part, part + 1);
        ready_.record();
        ready_.block(stream);
      });
    };
    return collective(call_of(reduce_name("reduce_scatter", op), output), {output, input}, enqueue);
  }
  produce(0, size());
  return nccl_reduce_scatter(output, input, op);
}

at::Tensor NcclCommunicator::alloc_symmetric(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (options.device().is_cpu()) return host_->alloc_symmetric(sizes, options);
  const Lock lock = lock_open();
  return copy_engines().empty(sizes, options);
}

Work NcclCommunicator::shift(std::vector<ShiftOp> ops) {
  if (ops.empty()) return {};
  if (ops[0].received.is_cpu()) return host_->shift(std::move(ops));
  CopyEngineShift* engines = nullptr;
  {
    const Lock lock = lock_open();
    engines = copy_engines().shift();
  }
  if (!engines) return Communicator::shift(std::move(ops));
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> distances;
  for (const auto& [received, sent, distance] : ops) {
    tensors.insert(tensors.end(), {received, sent});
    distances.push_back(distance);
  }
  // Ranks may send different sizes.
  const CollectiveFingerprint fingerprint =
      with_part({.operation = fmt::format("shift by {}", fmt::join(distances, ", "))});
  const auto enqueue = [&](ncclComm_t, cudaStream_t) {
    engines->shift(ops);
    return ncclSuccess;
  };
  return collective(fingerprint, std::move(tensors), enqueue, engines->stream());
}

Work NcclCommunicator::all_gather(at::Tensor output, at::Tensor input) {
  if (output.is_cpu()) return host_->all_gather(output, input);
  check_parts(output, input, size());
  return collective(call_of("all_gather", input), {output, input}, [=](ncclComm_t comm, cudaStream_t stream) {
    return ncclAllGather(input.const_data_ptr(), output.data_ptr(), input.nbytes(), ncclUint8, comm, stream);
  });
}

Work NcclCommunicator::broadcast(at::Tensor tensor, int64_t root) {
  if (tensor.is_cpu()) return host_->broadcast(tensor, root);
  TERATRON_ASSERT(root >= 0 && root < size(), "root {} of {}", root, size());
  return collective(call_of(fmt::format("broadcast(root {})", root), tensor), {tensor},
                    [=](ncclComm_t comm, cudaStream_t stream) {
                      return ncclBroadcast(tensor.data_ptr(), tensor.data_ptr(), tensor.nbytes(), ncclUint8,
                                           static_cast<int>(root), comm, stream);
                    });
}

Work NcclCommunicator::all_to_all(at::Tensor output, at::Tensor input) {
  if (output.is_cpu()) return host_->all_to_all(output, input);
  const int64_t n = size();
  check_all_to_all(output, input, n);
  return collective(call_of("all_to_all", input), {output, input}, [=](ncclComm_t comm, cudaStream_t stream) {
    return send_receive_all(output, input, n, comm, stream);
  });
}

const NcclComm& NcclCommunicator::comm_for(int64_t from, int64_t to) {
  const NcclComm* const link = links_.find(from, to);
  return link ? *link : group_comm();
}

namespace {

ncclResult_t enqueue_p2p(const P2POp& op, int peer, ncclComm_t comm, cudaStream_t stream) {
  const at::Tensor& tensor = op.tensor;
  return op.send ? ncclSend(tensor.const_data_ptr(), tensor.nbytes(), ncclUint8, peer, comm, stream)
                 : ncclRecv(tensor.data_ptr(), tensor.nbytes(), ncclUint8, peer, comm, stream);
}

CollectiveFingerprint p2p_fingerprint(const P2POp& op) {
  return fingerprint_of(fmt::format("{} group rank {}", op.send ? "send to" : "receive from", op.peer),
                        op.tensor);
}

}  // namespace

Work NcclCommunicator::batch_isend_irecv(std::vector<P2POp> ops) {
  if (ops.empty()) return {};
  if (ops[0].tensor.is_cpu()) return host_->batch_isend_irecv(std::move(ops));
  const Lock lock = lock_open();
  backend_->check();
  if (const std::vector<NcclLinks::Ends> ends = links_.missing(ops); !ends.empty()) {
    links_.open(ends, *host_, *backend_, [this](const NcclComm& link, const Enqueue& enqueue) {
      issue(link, {.fingerprint = {.operation = "first message"}}, enqueue);
    });
  }
  std::vector<Event> events;
  std::vector<P2POp> others;  // between ranks that are not neighbours
  for (const P2POp& op : ops) {
    const int64_t peer = op.peer;
    TERATRON_ASSERT(peer >= 0 && peer < size() && peer != rank(), "peer {} of {}", peer, size());
    const NcclComm& link = op.send ? comm_for(rank(), peer) : comm_for(peer, rank());
    if (&link == group_comm_.get()) {
      others.push_back(op);
      continue;
    }
    const auto enqueue = [&](ncclComm_t comm, cudaStream_t stream) {
      return enqueue_p2p(op, op.send ? 1 : 0, comm, stream);
    };
    events.push_back(issue(link, {.fingerprint = with_part(p2p_fingerprint(op))}, enqueue));
  }
  if (!others.empty()) {
    // In one NCCL group: separately, a send could wait for a receive behind it.
    const auto enqueue = [&](ncclComm_t comm, cudaStream_t stream) {
      check_nccl(ncclGroupStart(), comm, "ncclGroupStart");
      for (const P2POp& op : others) {
        check_nccl(enqueue_p2p(op, static_cast<int>(op.peer), comm, stream), comm, "ncclSend/ncclRecv");
      }
      return ncclGroupEnd();
    };
    events.push_back(
        issue(*group_comm_, {.fingerprint = with_part(p2p_fingerprint(others.front()))}, enqueue));
  }
  return Work([events, backend = backend_, keep = std::move(ops)] {
    backend->check();
    for (const Event& event : events) event->block(c10::cuda::getCurrentCUDAStream());
  });
}

void NcclCommunicator::send_bytes(int64_t to, const std::string& bytes) {
  host_->send_bytes(to, bytes);
}

std::string NcclCommunicator::receive_bytes(int64_t from) {
  return host_->receive_bytes(from);
}

std::vector<std::string> NcclCommunicator::gather_bytes(const std::string& bytes) {
  return host_->gather_bytes(bytes);
}

std::string NcclCommunicator::broadcast_bytes(const std::string& bytes) {
  return host_->broadcast_bytes(bytes);
}

std::vector<std::string> NcclCommunicator::all_gather_bytes(const std::string& bytes) {
  return host_->all_gather_bytes(bytes);
}

void NcclCommunicator::set_part(const std::string& part) {
  PartRecorder::set_part(part);
  dynamic_cast<PartRecorder&>(*host_).set_part(part);
}

void NcclCommunicator::watch_replay(const std::string& operation) {
  backend_->check();
  const Lock lock = lock_open();
  const CollectiveFingerprint fingerprint = with_part({.operation = operation});
  auto done = std::make_shared<c10::cuda::CUDAEvent>();
  done->record(c10::cuda::getCurrentCUDAStream());
  const int64_t sequence = group_->record(fingerprint);
  pending_.add({.fingerprint = fingerprint, .sequence = sequence, .done = std::move(done)});
}

CollectiveFingerprint NcclCommunicator::call_of(std::string operation, const at::Tensor& tensor) const {
  return with_part(fingerprint_of(std::move(operation), tensor));
}

void NcclCommunicator::barrier() {
  host_->barrier();
}

void NcclCommunicator::abort(const std::string& reason) {
  host_->abort(reason);
  close();
}

std::string NcclCommunicator::describe(const PendingWork& work) const {
  if (work.sequence) return group_->describe(work.fingerprint, *work.sequence);
  return fmt::format("{} in {}", to_string(work.fingerprint), group_->name());
}

std::optional<std::string> NcclCommunicator::check_blocked_query() {
  const std::optional<Clock::time_point> since = pending_.query_since();
  if (!since || Clock::now() - *since <= backend_->timeout()) return std::nullopt;
  const std::optional<PendingWork> work = pending_.front();
  if (!work) return std::nullopt;
  return group_->diagnose_timeout(describe(*work), work->sequence);
}

/// "" while NCCL is being called: it returns errors to the caller.
std::string NcclCommunicator::async_error() {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock) return "";
  const std::string error = group_comm_ ? group_comm_->async_error() : "";
  return error.empty() ? links_.async_error() : error;
}

std::optional<std::string> NcclCommunicator::check_async_error() {
  if (std::string error = async_error(); !error.empty()) return error;
  const std::optional<PendingWork> work = pending_.oldest_incomplete();
  if (!work || Clock::now() - work->since <= backend_->timeout()) return std::nullopt;
  return group_->diagnose_timeout(describe(*work), work->sequence);
}

void NcclCommunicator::close() {
  const Lock lock(mutex_);
  closed_ = true;
  pending_.clear();
  links_.close();
  group_comm_.reset();
}

}  // namespace teratron
