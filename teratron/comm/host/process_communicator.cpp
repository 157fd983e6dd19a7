#include "teratron/comm/host/process_communicator.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "teratron/comm/host/process_group.h"
#include "teratron/comm/host/tensor_fingerprint.h"
#include "teratron/comm/part_communicator.h"

namespace teratron {
namespace {

using Parts = std::vector<ByteSpan>;
using ByteBuffers = std::vector<ByteBuffer>;

constexpr size_t kSmall =
    16384;  // bytes; up to here every rank reduces the whole tensor: one phase instead of two

const CollectiveFingerprint kByteMessage{.operation = "bytes"};

void copy_bytes(void* target, ByteSpan source) {
  if (target != source.data() && !source.empty()) std::memcpy(target, source.data(), source.size());
}

ByteSpan bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

class ProcessCommunicator final : public Communicator, public PartRecorder {
 public:
  ProcessCommunicator(std::shared_ptr<ProcessBackend> backend, const std::vector<int64_t>& ranks)
      : backend_(std::move(backend)), group_(backend_->group(ranks)) {}

  int64_t rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }

  /// Large tensors: a reduce-scatter (rank r reduces the r-th part), then an all-gather.
  Work all_reduce(at::Tensor tensor, ReduceOp op) override {
    const CollectiveFingerprint fingerprint = call_of(reduce_name("all_reduce", op), tensor);
    const Reduction reduction{reducible_dtype(tensor.scalar_type()), op};
    const ByteSpan all = bytes_of(tensor);
    if (tensor.nbytes() <= kSmall) {
      const ByteBuffers buffers = group_->all_to_all(fingerprint, Parts(size(), all));
      reduce_into(reduction, buffers, {.own = all, .output = data_of(tensor), .count = tensor.numel()});
      return {};
    }
    const auto item = tensor.element_size();
    const auto begin = [&](int64_t r) { return tensor.numel() * r / size(); };
    Parts parts;
    for (int64_t r = 0; r < size(); ++r) {
      parts.push_back(all.subspan(begin(r) * item, (begin(r + 1) - begin(r)) * item));
    }
    const ByteSpan mine = parts[rank()];
    const ByteBuffers buffers = group_->all_to_all(fingerprint, parts);
    reduce_into(reduction, buffers,
                {.own = mine,
                 .output = data_of(tensor) + begin(rank()) * item,
                 .count = begin(rank() + 1) - begin(rank())});
    const ByteBuffers reduced = group_->continue_all_to_all(Parts(size(), mine));
    for (int64_t r = 0; r < size(); ++r) {
      if (r != rank()) copy_bytes(data_of(tensor) + begin(r) * item, part_of(reduced, r, parts[r].size()));
    }
    return {};
  }

  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    const CollectiveFingerprint fingerprint = call_of(reduce_name("reduce_scatter", op), output);
    check_parts(input, output, size());
    const Parts parts = split(input);
    const ByteBuffers buffers = group_->all_to_all(fingerprint, parts);
    reduce_into({reducible_dtype(output.scalar_type()), op}, buffers,
                {.own = parts[rank()], .output = data_of(output), .count = output.numel()});
    return {};
  }

  Work all_gather(at::Tensor output, at::Tensor input) override {
    const CollectiveFingerprint fingerprint = call_of("all_gather", input);
    check_parts(output, input, size());
    concat(output, bytes_of(input), group_->all_to_all(fingerprint, Parts(size(), bytes_of(input))));
    return {};
  }

  /// All ranks exchange messages, though only the root sends data, to detect mismatches.
  Work broadcast(at::Tensor tensor, int64_t root) override {
    TERATRON_ASSERT(root >= 0 && root < size(), "root {} of {}", root, size());
    const CollectiveFingerprint fingerprint = call_of(fmt::format("broadcast(root {})", root), tensor);
    const ByteBuffers buffers =
        group_->all_to_all(fingerprint, Parts(size(), rank() == root ? bytes_of(tensor) : ByteSpan()));
    if (rank() != root) copy_bytes(data_of(tensor), part_of(buffers, root, tensor.nbytes()));
    return {};
  }

  Work all_to_all(at::Tensor output, at::Tensor input) override {
    const CollectiveFingerprint fingerprint = call_of("all_to_all", input);
    check_all_to_all(output, input, size());
    const Parts parts = split(input);
    concat(output, parts[rank()], group_->all_to_all(fingerprint, parts));
    return {};
  }

  Work batch_isend_irecv(std::vector<P2POp> ops) override {
    // All sends first: they are buffered, and a peer may wait for one of them.
    for (const P2POp& op : ops) {
      TERATRON_ASSERT(op.peer >= 0 && op.peer < size(), "peer {} of {}", op.peer, size());
      const CollectiveFingerprint fingerprint = call_of("message", op.tensor);
      if (op.send) group_->send(op.peer, fingerprint, bytes_of(op.tensor));
    }
    for (const P2POp& op : ops) {
      if (op.send) continue;
      const ByteBuffer buffer = group_->receive(op.peer, call_of("message", op.tensor));
      check_size(buffer, op.peer, op.tensor.nbytes());
      copy_bytes(data_of(op.tensor), buffer.bytes());
    }
    return {};
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return group_->all_gather(bytes);
  }
  std::vector<std::string> gather_bytes(const std::string& bytes) override { return group_->gather(bytes); }
  std::string broadcast_bytes(const std::string& bytes) override { return group_->broadcast(bytes); }

  void send_bytes(int64_t to, const std::string& bytes) override {
    group_->send(to, kByteMessage, std::as_bytes(std::span(bytes)));
  }
  std::string receive_bytes(int64_t from) override {
    const ByteBuffer buffer = group_->receive(from, kByteMessage);
    return {reinterpret_cast<const char*>(buffer.bytes().data()), buffer.size()};
  }

  void barrier() override { group_->barrier(); }
  void abort(const std::string& reason) override { backend_->fail(reason, ExitCode::retryable); }

 private:
  CollectiveFingerprint call_of(std::string operation, const at::Tensor& tensor) const {
    return with_part(cpu_fingerprint_of(std::move(operation), tensor));
  }

  struct Share {
    ByteSpan own;       // what this rank brings
    std::byte* output;  // may be own's concat
    int64_t count;      // elements
  };

  void reduce_into(Reduction reduction, const ByteBuffers& buffers, const Share& share) const {
    std::vector<const void*> inputs;
    for (int64_t r = 0; r < size(); ++r) {
      inputs.push_back(r == rank() ? share.own.data() : part_of(buffers, r, share.own.size()).data());
    }
    reduce(reduction, inputs, 0, share.count, share.output);
  }

  /// The fingerprint, which is compared, determines the size; what arrives may be of a damaged program.
  void check_size(const ByteBuffer& buffer, int64_t from, size_t bytes) const {
    if (buffer.size() == bytes) return;
    backend_->fail(fmt::format("malformed message: rank {} of the group sent {} bytes instead of {}", from,
                               buffer.size(), bytes),
                   ExitCode::retryable);
    backend_->check();
  }

  ByteSpan part_of(const ByteBuffers& buffers, int64_t from, size_t bytes) const {
    check_size(buffers[from], from, bytes);
    return buffers[from].bytes();
  }

  /// Equal parts of a tensor.
  Parts split(const at::Tensor& tensor) const {
    const size_t bytes = tensor.nbytes() / size();
    Parts parts;
    for (int64_t r = 0; r < size(); ++r) parts.push_back(bytes_of(tensor).subspan(r * bytes, bytes));
    return parts;
  }

  /// Concatenates equal parts; `own` is this rank's.
  void concat(const at::Tensor& output, ByteSpan own, const ByteBuffers& buffers) const {
    for (int64_t r = 0; r < size(); ++r) {
      copy_bytes(data_of(output) + r * own.size(), r == rank() ? own : part_of(buffers, r, own.size()));
    }
  }

  std::shared_ptr<ProcessBackend> backend_;
  std::unique_ptr<ProcessGroup> group_;
};

}  // namespace

std::shared_ptr<Communicator> process_communicator(std::shared_ptr<ProcessBackend> backend,
                                                   const std::vector<int64_t>& ranks) {
  return std::make_shared<ProcessCommunicator>(std::move(backend), ranks);
}

}  // namespace teratron
