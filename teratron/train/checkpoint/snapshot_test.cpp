#include "teratron/train/checkpoint/snapshot.h"

#include <atomic>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "teratron/ckpt/manifest.h"
#include "teratron/device/device.h"

namespace teratron {
namespace {

std::vector<at::Device> devices() {
  std::vector<at::Device> all = {at::kCPU};
  if (gpu_count() > 0) all.push_back(current_gpu());
  return all;
}

SavedTensor saved(const at::Tensor& values, const at::Tensor& remainder = {}, bool fixed = true) {
  const Shard shard = Shard::replicated({values.numel()});
  return {
      {.name = "t", .shard = shard, .local = {0, values.numel()}, .values = values, .remainder = remainder},
      fixed};
}

// Three slabs of values, one of them over a bound; split fp32 values; and one that forward changes.
std::vector<SavedTensor> tensors_on(at::Device device) {
  const at::TensorOptions options = at::TensorOptions().device(device).dtype(at::kFloat);
  const at::Tensor bits = at::arange(100'003, options.dtype(at::kInt)) * 21'001;
  const at::Tensor high = bits.bitwise_right_shift(16).to(at::kShort).view(at::kBFloat16);
  const at::Tensor low = bits.bitwise_and(0x7fff).to(at::kShort);
  return {saved(at::arange(20'000'000, options)), saved(high, low), saved(at::arange(7, options), {}, false),
          saved(at::arange(3, options.dtype(at::kLong))), saved(at::zeros({5}, options))};
}

using Reader = std::function<std::shared_ptr<const void>(size_t tensor, int64_t begin, int64_t end)>;

// Compares pieces of a tensor with its values, which are on the host.
void expect_values(const Reader& read, size_t tensor, const StateTensor& expected) {
  const at::Tensor values = expected.read().cpu().contiguous();
  const auto element = static_cast<int64_t>(values.element_size());
  const int64_t step = Manifest::block_bytes / element;
  const auto* bytes = static_cast<const std::byte*>(values.const_data_ptr());
  for (int64_t begin = 0; begin < values.numel(); begin += step) {
    const int64_t end = std::min(values.numel(), begin + step);
    const auto piece = read(tensor, begin, end);
    ASSERT_EQ(std::memcmp(piece.get(), bytes + begin * element, static_cast<size_t>((end - begin) * element)),
              0)
        << "tensor " << tensor << " from " << begin;
  }
}

TEST(Snapshot, HoldsTheValuesAtItsStart) {
  for (const at::Device device : devices()) {
    const auto memory = std::make_shared<SnapshotMemory>(device);
    for (int round = 0; round < 2; ++round) {  // the second one uses the same memory
      const std::vector<SavedTensor> tensors = tensors_on(device);
      std::vector<StateTensor> before;
      for (const SavedTensor& tensor : tensors) {
        before.push_back(tensor.state);
        before.back().values = tensor.state.values.cpu().clone();
        if (tensor.state.remainder.defined()) before.back().remainder = tensor.state.remainder.cpu().clone();
      }
      Snapshot snapshot(tensors, memory);
      const std::vector<bool> chosen = {true, true, true, true, false};
      snapshot.start(chosen);
      EXPECT_EQ(memory->memory().size(), Snapshot::bytes(tensors, chosen));
      tensors[2].state.values.zero_();  // as forward does
      snapshot.before_update();
      for (const SavedTensor& tensor : tensors) tensor.state.values.zero_();
      const auto read = [&](size_t tensor, int64_t begin, int64_t end) {
        return snapshot.read(tensor, begin, end);
      };
      for (size_t i = 0; i < 4; ++i) expect_values(read, i, before[i]);
    }
  }
}

TEST(Snapshot, ManyThreadsReadTheDeviceThroughFewBuffers) {
  for (const at::Device device : devices()) {
    const std::vector<SavedTensor> tensors = tensors_on(device);
    DeviceReader reader(device, 2);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < tensors.size(); ++i) {
      threads.emplace_back([&, i] {
        const auto read = [&](size_t tensor, int64_t begin, int64_t end) {
          return reader.read(tensors[tensor].state, begin, end);
        };
        expect_values(read, i, tensors[i].state);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

class CountingStream : public CopyStream {
 public:
  void pin(std::span<std::byte> memory) override {
    if (fails) throw Fault("cannot pin");
    pinned += static_cast<int64_t>(memory.size());
  }
  void unpin(std::span<std::byte> memory) override { pinned -= static_cast<int64_t>(memory.size()); }
  void follow_current() override {}
  void copy(void*, const void*, size_t) override {}
  void copy_in_current(void*, const void*, size_t) override {}
  void mark() override {}
  void reset() override {}
  void wait(size_t) override {}
  void let_current_wait(size_t) override {}
  std::atomic<int64_t> pinned = 0;
  bool fails = false;
};

TEST(HostMemory, IsPreparedInTheBackground) {
  constexpr int64_t bytes = 2 * HostMemory::slab_bytes + 1000;
  CountingStream stream;
  {
    HostMemory memory(bytes, stream);
    memory.wait_prepared(1);
    EXPECT_GE(stream.pinned, HostMemory::slab_bytes);
    memory.data()[0] = std::byte{1};
    memory.wait_prepared(bytes);
    EXPECT_EQ(stream.pinned, bytes);
    memory.data()[bytes - 1] = std::byte{1};
  }
  EXPECT_EQ(stream.pinned, 0);
  {
    const HostMemory unused(bytes, stream);
  }
  EXPECT_EQ(stream.pinned, 0) << "the end does not wait for the rest, and releases what is pinned";
  {
    const HostMemory nothing(0, stream);
  }
  stream.fails = true;
  HostMemory memory(bytes, stream);
  EXPECT_THROW(memory.wait_prepared(bytes), Fault);
}

}  // namespace
}  // namespace teratron
