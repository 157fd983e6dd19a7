#include "teratron/comm/host/thread_communicator.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/comm/host/tensor_fingerprint.h"
#include "teratron/comm/part_communicator.h"

namespace teratron {
namespace {

using All = std::span<const Buffers>;

/// A message of bytes follows one with their number.
const CollectiveFingerprint kSizeOfBytes{.operation = "size of bytes"}, kBytes{.operation = "bytes"};

/// memcpy that allows target == source (in-place all_gather) and zero bytes.
void copy_bytes(void* target, const void* source, size_t bytes) {
  if (target != source && bytes > 0) std::memcpy(target, source, bytes);
}

const std::byte* bytes_at(const void* base, int64_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}
std::byte* bytes_at(void* base, int64_t offset) {
  return static_cast<std::byte*>(base) + offset;
}

std::vector<const void*> inputs_of(All all) {
  std::vector<const void*> inputs;
  for (const Buffers& buffers : all) inputs.push_back(buffers.input);
  return inputs;
}

class ThreadCommunicator final : public Communicator, public PartRecorder {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadBackend> backend, ThreadGroup& group, int64_t rank)
      : backend_(std::move(backend)), group_(group), rank_(rank) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return group_.size(); }

  /// Rank r reduces the r-th part of all tensors and writes the result into all of them.
  Work all_reduce(at::Tensor tensor, ReduceOp op) override {
    const Reduction reduction{reducible_dtype(tensor.scalar_type()), op};
    const int64_t item = tensor.element_size();
    const int64_t begin = tensor.numel() * rank_ / size(), end = tensor.numel() * (rank_ + 1) / size();
    return collective(call_of(reduce_name("all_reduce", op), tensor), tensor, tensor, [&](All all) {
      void* mine = bytes_at(all[rank_].output, begin * item);
      reduce(reduction, inputs_of(all), begin, end - begin, mine);
      for (const Buffers& other : all)
        copy_bytes(bytes_at(other.output, begin * item), mine, (end - begin) * item);
    });
  }

  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    check_parts(input, output, size());
    const Reduction reduction{reducible_dtype(output.scalar_type()), op};
    return collective(call_of(reduce_name("reduce_scatter", op), output), input, output, [&](All all) {
      reduce(reduction, inputs_of(all), rank_ * output.numel(), output.numel(), all[rank_].output);
    });
  }

  Work all_gather(at::Tensor output, at::Tensor input) override {
    check_parts(output, input, size());
    const auto bytes = static_cast<int64_t>(input.nbytes());
    return collective(call_of("all_gather", input), input, output, [&](All all) {
      for (int64_t r = 0; r < size(); ++r)
        copy_bytes(bytes_at(all[rank_].output, r * bytes), all[r].input, bytes);
    });
  }

  Work broadcast(at::Tensor tensor, int64_t root) override {
    TERATRON_ASSERT(root >= 0 && root < size(), "root {} of {}", root, size());
    return collective(call_of(fmt::format("broadcast(root {})", root), tensor), tensor, tensor,
                      [&](All all) { copy_bytes(all[rank_].output, all[root].input, tensor.nbytes()); });
  }

  Work all_to_all(at::Tensor output, at::Tensor input) override {
    check_all_to_all(output, input, size());
    const auto bytes = static_cast<int64_t>(input.nbytes()) / size();
    return collective(call_of("all_to_all", input), input, output, [&](All all) {
      for (int64_t r = 0; r < size(); ++r) {
        copy_bytes(bytes_at(all[rank_].output, r * bytes), bytes_at(all[r].input, rank_ * bytes), bytes);
      }
    });
  }

  Work batch_isend_irecv(std::vector<P2POp> ops) override {
    // All sends first: they are buffered, and a peer may wait for one of them.
    for (const P2POp& op : ops) {
      TERATRON_ASSERT(op.peer >= 0 && op.peer < size(), "peer {} of {}", op.peer, size());
      const CollectiveFingerprint fingerprint = call_of("message", op.tensor);
      if (!op.send) continue;
      const auto* bytes = static_cast<const std::byte*>(op.tensor.const_data_ptr());
      group_.send(rank_, op.peer, fingerprint, {bytes, op.tensor.nbytes()});
    }
    for (const P2POp& op : ops) {
      if (op.send) continue;
      auto* bytes = static_cast<std::byte*>(op.tensor.data_ptr());
      group_.receive(op.peer, rank_, call_of("message", op.tensor), {bytes, op.tensor.nbytes()});
    }
    return {};
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    std::vector<std::string> result(size());
    group_.collective(rank_, {"all_gather_bytes"}, {&bytes, nullptr}, [&](All all) {
      for (int64_t r = 0; r < size(); ++r) result[r] = *static_cast<const std::string*>(all[r].input);
    });
    return result;
  }

  std::vector<std::string> gather_bytes(const std::string& bytes) override {
    std::vector<std::string> result;
    group_.collective(rank_, {"gather_bytes"}, {&bytes, nullptr}, [&](All all) {
      if (rank_ > 0) return;
      for (const Buffers& other : all) result.push_back(*static_cast<const std::string*>(other.input));
    });
    return result;
  }

  std::string broadcast_bytes(const std::string& bytes) override {
    std::string result;
    group_.collective(rank_, {"broadcast_bytes"}, {&bytes, nullptr},
                      [&](All all) { result = *static_cast<const std::string*>(all[0].input); });
    return result;
  }

  void send_bytes(int64_t to, const std::string& bytes) override {
    const uint64_t size = bytes.size();
    group_.send(rank_, to, kSizeOfBytes, std::as_bytes(std::span(&size, 1)));
    group_.send(rank_, to, kBytes, std::as_bytes(std::span(bytes)));
  }

  std::string receive_bytes(int64_t from) override {
    uint64_t size = 0;
    group_.receive(from, rank_, kSizeOfBytes, std::as_writable_bytes(std::span(&size, 1)));
    std::string bytes(size, '\0');
    group_.receive(from, rank_, kBytes, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  void barrier() override {
    group_.collective(rank_, {"barrier"}, {}, [](All) {});
  }

  void abort(const std::string& reason) override { group_.abort(reason); }

 private:
  CollectiveFingerprint call_of(std::string operation, const at::Tensor& tensor) const {
    return with_part(cpu_fingerprint_of(std::move(operation), tensor));
  }

  Work collective(CollectiveFingerprint fingerprint, const at::Tensor& input, const at::Tensor& output,
                  const ThreadGroup::LocalWork& work) {
    group_.collective(rank_, std::move(fingerprint), {input.const_data_ptr(), output.data_ptr()}, work);
    return {};
  }

  std::shared_ptr<ThreadBackend> backend_;  // owns group_
  ThreadGroup& group_;
  const int64_t rank_;
};

}  // namespace

std::shared_ptr<Communicator> thread_communicator(std::shared_ptr<ThreadBackend> backend, ThreadGroup& group,
                                                  int64_t rank) {
  return std::make_shared<ThreadCommunicator>(std::move(backend), group, rank);
}

}  // namespace teratron
