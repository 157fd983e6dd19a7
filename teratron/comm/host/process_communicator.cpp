#include "teratron/comm/host/process_communicator.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "teratron/comm/host/tensor_call.h"

namespace teratron {
namespace {

using Parts = std::vector<ByteSpan>;
using Blocks = std::vector<Block>;

constexpr size_t kSmall = 16384;  // bytes up to which every rank reduces all by itself: one phase, not two

void copy_bytes(void* target, ByteSpan source) {
  if (target != source.data() && !source.empty()) std::memcpy(target, source.data(), source.size());
}

ByteSpan bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

class ProcessCommunicator final : public Communicator {
 public:
  ProcessCommunicator(std::shared_ptr<ProcessRanks> ranks, const std::vector<int64_t>& group)
      : ranks_(std::move(ranks)), meeting_(ranks_->meeting(group)) {}

  int64_t rank() const override { return meeting_->rank(); }
  int64_t size() const override { return meeting_->size(); }

  /// Large tensors: rank r reduces the r-th part of all and sends it to all.
  Work all_reduce(at::Tensor tensor, ReduceOp op) override {
    const Call call = cpu_call_of(reduce_name("all_reduce", op), tensor);
    const Reduction reduction{reducible_dtype(tensor.scalar_type()), op};
    const ByteSpan all = bytes_of(tensor);
    if (tensor.nbytes() <= kSmall) {
      const Blocks blocks = meeting_->meet(call, Parts(size(), all));
      reduce_own(reduction, blocks, {.own = all, .output = data_of(tensor), .count = tensor.numel()});
      return {};
    }
    const auto item = tensor.element_size();
    const auto begin = [&](int64_t r) { return tensor.numel() * r / size(); };
    Parts parts;
    for (int64_t r = 0; r < size(); ++r) {
      parts.push_back(all.subspan(begin(r) * item, (begin(r + 1) - begin(r)) * item));
    }
    const ByteSpan mine = parts[rank()];
    const Blocks blocks = meeting_->meet(call, parts);
    reduce_own(reduction, blocks,
               {.own = mine,
                .output = data_of(tensor) + begin(rank()) * item,
                .count = begin(rank() + 1) - begin(rank())});
    const Blocks reduced = meeting_->meet_again(Parts(size(), mine));
    for (int64_t r = 0; r < size(); ++r) copy_bytes(data_of(tensor) + begin(r) * item, reduced[r].bytes());
    return {};
  }

  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    const Call call = cpu_call_of(reduce_name("reduce_scatter", op), output);
    check_parts(input, output, size());
    const Parts parts = cut(input);
    const Blocks blocks = meeting_->meet(call, parts);
    reduce_own({reducible_dtype(output.scalar_type()), op}, blocks,
               {.own = parts[rank()], .output = data_of(output), .count = output.numel()});
    return {};
  }

  Work all_gather(at::Tensor output, at::Tensor input) override {
    const Call call = cpu_call_of("all_gather", input);
    check_parts(output, input, size());
    place(output, bytes_of(input), meeting_->meet(call, Parts(size(), bytes_of(input))));
    return {};
  }

  /// All meet, though only the root has something to say: whoever came with another call is found.
  Work broadcast(at::Tensor tensor, int64_t root) override {
    TERATRON_ASSERT(root >= 0 && root < size(), "root {} of {}", root, size());
    const Call call = cpu_call_of(fmt::format("broadcast(root {})", root), tensor);
    const Blocks blocks = meeting_->meet(call, Parts(size(), rank() == root ? bytes_of(tensor) : ByteSpan()));
    copy_bytes(data_of(tensor), blocks[root].bytes());
    return {};
  }

  Work all_to_all(at::Tensor output, at::Tensor input) override {
    const Call call = cpu_call_of("all_to_all", input);
    TERATRON_ASSERT(
        output.is_contiguous() && output.nbytes() == input.nbytes() && input.numel() % size() == 0,
        "{} elements into {} parts", input.numel(), size());
    const Parts parts = cut(input);
    place(output, parts[rank()], meeting_->meet(call, parts));
    return {};
  }

  Work exchange(std::vector<PointToPoint> messages) override {
    // All sends go out first: they are buffered, and a peer may wait for one of them.
    for (const PointToPoint& message : messages) {
      TERATRON_ASSERT(message.peer >= 0 && message.peer < size(), "peer {} of {}", message.peer, size());
      const Call call = cpu_call_of("message", message.tensor);
      if (message.send) meeting_->send(message.peer, call, bytes_of(message.tensor));
    }
    for (const PointToPoint& message : messages) {
      if (message.send) continue;
      const Block block = meeting_->receive(message.peer, cpu_call_of("message", message.tensor));
      copy_bytes(data_of(message.tensor), block.bytes());
    }
    return {};
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    const Blocks blocks =
        meeting_->meet({.operation = "all_gather_bytes"}, Parts(size(), std::as_bytes(std::span(bytes))));
    std::vector<std::string> result(size());
    for (int64_t r = 0; r < size(); ++r) {
      const ByteSpan from = blocks[r].bytes();
      result[r].assign(reinterpret_cast<const char*>(from.data()), from.size());
    }
    result[rank()] = bytes;
    return result;
  }

  void barrier() override { meeting_->meet({.operation = "barrier"}, Parts(size())); }
  void abort(const std::string& reason) override { ranks_->fail(reason, ExitCode::retryable); }

 private:
  struct Share {
    ByteSpan own;       // what this rank brings
    std::byte* output;  // may be own's place
    int64_t count;      // elements
  };

  void reduce_own(Reduction reduction, const Blocks& blocks, const Share& share) const {
    std::vector<const void*> inputs;
    for (const Block& block : blocks) inputs.push_back(block.bytes().data());
    inputs[rank()] = share.own.data();
    reduce(reduction, inputs, 0, share.count, share.output);
  }

  /// The equal parts of a tensor.
  Parts cut(const at::Tensor& tensor) const {
    const size_t bytes = tensor.nbytes() / size();
    Parts parts;
    for (int64_t r = 0; r < size(); ++r) parts.push_back(bytes_of(tensor).subspan(r * bytes, bytes));
    return parts;
  }

  /// Joins equal parts, of which `own` is this rank's.
  void place(const at::Tensor& output, ByteSpan own, const Blocks& blocks) const {
    for (int64_t r = 0; r < size(); ++r) {
      copy_bytes(data_of(output) + r * own.size(), r == rank() ? own : blocks[r].bytes());
    }
  }

  std::shared_ptr<ProcessRanks> ranks_;
  std::unique_ptr<ProcessMeeting> meeting_;
};

}  // namespace

std::shared_ptr<Communicator> process_communicator(std::shared_ptr<ProcessRanks> ranks,
                                                   const std::vector<int64_t>& group) {
  return std::make_shared<ProcessCommunicator>(std::move(ranks), group);
}

}  // namespace teratron
