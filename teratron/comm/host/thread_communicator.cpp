#include "teratron/comm/host/thread_communicator.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/comm/host/tensor_call.h"

namespace teratron {
namespace {

using All = std::span<const Buffers>;

Buffers buffers_of(const at::Tensor& input, const at::Tensor& output) {
  return {input.const_data_ptr(), output.data_ptr()};
}

/// memcpy that allows the copy of a place to itself (in-place all-gather) and of nothing.
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

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Rendezvous> home, Meeting& meeting, int64_t rank)
      : home_(std::move(home)), meeting_(meeting), rank_(rank) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return meeting_.size(); }

  /// Rank r reduces the r-th part of all tensors and writes it into all of them: nobody else touches that
  /// part.
  Work all_reduce(at::Tensor tensor, ReduceOp op) override {
    Call call = cpu_call_of(reduce_name("all_reduce", op), tensor);
    const Reduction reduction{reducible_dtype(tensor.scalar_type()), op};
    const int64_t item = tensor.element_size();
    const int64_t begin = tensor.numel() * rank_ / size(), end = tensor.numel() * (rank_ + 1) / size();
    meeting_.collective(rank_, std::move(call), buffers_of(tensor, tensor), [&](All all) {
      void* mine = bytes_at(all[rank_].output, begin * item);
      reduce(reduction, inputs_of(all), begin, end - begin, mine);
      for (const Buffers& other : all)
        copy_bytes(bytes_at(other.output, begin * item), mine, (end - begin) * item);
    });
    return {};
  }

  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    Call call = cpu_call_of(reduce_name("reduce_scatter", op), output);
    check_parts(input, output, size());
    const Reduction reduction{reducible_dtype(output.scalar_type()), op};
    meeting_.collective(rank_, std::move(call), buffers_of(input, output), [&](All all) {
      reduce(reduction, inputs_of(all), rank_ * output.numel(), output.numel(), all[rank_].output);
    });
    return {};
  }

  Work all_gather(at::Tensor output, at::Tensor input) override {
    Call call = cpu_call_of("all_gather", input);
    check_parts(output, input, size());
    const auto bytes = static_cast<int64_t>(input.nbytes());
    meeting_.collective(rank_, std::move(call), buffers_of(input, output), [&](All all) {
      for (int64_t r = 0; r < size(); ++r)
        copy_bytes(bytes_at(all[rank_].output, r * bytes), all[r].input, bytes);
    });
    return {};
  }

  Work broadcast(at::Tensor tensor, int64_t root) override {
    TERATRON_ASSERT(root >= 0 && root < size(), "root {} of {}", root, size());
    Call call = cpu_call_of(fmt::format("broadcast(root {})", root), tensor);
    meeting_.collective(rank_, std::move(call), buffers_of(tensor, tensor),
                        [&](All all) { copy_bytes(all[rank_].output, all[root].input, tensor.nbytes()); });
    return {};
  }

  Work all_to_all(at::Tensor output, at::Tensor input) override {
    Call call = cpu_call_of("all_to_all", input);
    TERATRON_ASSERT(
        output.is_contiguous() && output.nbytes() == input.nbytes() && input.numel() % size() == 0,
        "{} elements into {} parts", input.numel(), size());
    const auto bytes = static_cast<int64_t>(input.nbytes()) / size();
    meeting_.collective(rank_, std::move(call), buffers_of(input, output), [&](All all) {
      for (int64_t r = 0; r < size(); ++r) {
        copy_bytes(bytes_at(all[rank_].output, r * bytes), bytes_at(all[r].input, rank_ * bytes), bytes);
      }
    });
    return {};
  }

  Work exchange(std::vector<PointToPoint> messages) override {
    // All sends go out first: they are buffered, and a peer may wait for one of them.
    for (const PointToPoint& message : messages) {
      check_peer(message.peer);
      const Call call = cpu_call_of("message", message.tensor);
      if (!message.send) continue;
      const auto* bytes = static_cast<const std::byte*>(message.tensor.const_data_ptr());
      meeting_.send(rank_, message.peer, call, {bytes, message.tensor.nbytes()});
    }
    for (const PointToPoint& message : messages) {
      if (message.send) continue;
      auto* bytes = static_cast<std::byte*>(message.tensor.data_ptr());
      meeting_.receive(message.peer, rank_, cpu_call_of("message", message.tensor),
                       {bytes, message.tensor.nbytes()});
    }
    return {};
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    std::vector<std::string> result(size());
    meeting_.collective(rank_, {"all_gather_bytes", "", {}}, {&bytes, nullptr}, [&](All all) {
      for (int64_t r = 0; r < size(); ++r) result[r] = *static_cast<const std::string*>(all[r].input);
    });
    return result;
  }

  void barrier() override {
    meeting_.collective(rank_, {"barrier", "", {}}, {}, [](All) {});
  }

  void abort(const std::string& reason) override { meeting_.abort(reason); }

 private:
  void check_peer(int64_t peer) const {
    TERATRON_ASSERT(peer >= 0 && peer < size(), "peer {} of {}", peer, size());
  }

  std::shared_ptr<Rendezvous> home_;  // keeps meeting_ alive
  Meeting& meeting_;
  const int64_t rank_;
};

}  // namespace

std::shared_ptr<Communicator> thread_communicator(std::shared_ptr<Rendezvous> home, Meeting& meeting,
                                                  int64_t rank) {
  return std::make_shared<ThreadCommunicator>(std::move(home), meeting, rank);
}

}  // namespace teratron
