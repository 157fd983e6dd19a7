#include "teratron/train/checkpoint/snapshot.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/kernels/optimizer/split_master_weights.h"

namespace teratron {

namespace {

constexpr int64_t alignment = 64;

int64_t aligned(int64_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

int64_t byte_count(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

// fp32 values from their halves.
std::shared_ptr<const void> join(const void* high, const void* low, int64_t count) {
  const auto joined = std::shared_ptr<uint32_t[]>(new uint32_t[static_cast<size_t>(count)]);
  const auto* const highs = static_cast<const uint16_t*>(high);
  const auto* const lows = static_cast<const int16_t*>(low);
  for (int64_t i = 0; i < count; ++i) joined[i] = join_master_weight({highs[i], lows[i]});
  return {joined, joined.get()};
}

}  // namespace

DeviceReader::Buffer::Buffer(at::Device device)
    : stream(make_copy_stream(device)), memory(Manifest::block_bytes, *stream) {
  memory.wait_prepared(memory.size());
  stream->follow_current();
}

DeviceReader::DeviceReader(at::Device device, size_t count) : on_cpu_(device.is_cpu()) {
  for (size_t i = 0; i < count && !on_cpu_; ++i) free_.push_back(std::make_unique<Buffer>(device));
}

// Back in `free_` when the last user releases it.
std::shared_ptr<DeviceReader::Buffer> DeviceReader::acquire() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !free_.empty(); });
  std::unique_ptr<Buffer> buffer = std::move(free_.back());
  free_.pop_back();
  return {buffer.release(), [this](Buffer* used) {
            const std::lock_guard release(mutex_);
            free_.emplace_back(used);
            changed_.notify_one();
          }};
}

std::shared_ptr<const void> DeviceReader::read(const StateTensor& state, int64_t begin, int64_t end) {
  const StateTensor part = state.part(begin, end);
  const void* const high = part.values.const_data_ptr();
  const void* const low = part.remainder.defined() ? part.remainder.const_data_ptr() : nullptr;
  if (on_cpu_ && low) return join(high, low, end - begin);
  if (on_cpu_) return {std::shared_ptr<const void>(), high};
  const std::shared_ptr<Buffer> buffer = acquire();
  std::byte* const host = buffer->memory.data();
  const int64_t bytes = byte_count(part.values);
  buffer->stream->reset();
  buffer->stream->copy(host, high, static_cast<size_t>(bytes));
  if (low) buffer->stream->copy(host + bytes, low, static_cast<size_t>(byte_count(part.remainder)));
  buffer->stream->mark();
  buffer->stream->wait(0);
  if (low) return join(host, host + bytes, end - begin);
  return {buffer, host};
}

void SnapshotMemory::reserve(int64_t bytes) {
  if (memory_ && memory_->size() >= bytes) return;
  memory_.reset();
  memory_ = std::make_unique<HostMemory>(bytes, *stream_);
}

Snapshot::Snapshot(std::vector<SavedTensor> tensors, std::shared_ptr<SnapshotMemory> memory)
    : tensors_(std::move(tensors)), memory_(std::move(memory)), places_(tensors_.size()) {}

Snapshot::~Snapshot() {
  if (thread_.joinable()) thread_.join();
  if (marks_ > 0) memory_->stream().wait(static_cast<size_t>(marks_ - 1));
}

int64_t Snapshot::bytes(const std::vector<SavedTensor>& tensors, const std::vector<bool>& chosen) {
  int64_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StateTensor& state = tensors[i].state;
    if (chosen[i]) total += aligned(byte_count(state.values)) + aligned(byte_count(state.remainder));
  }
  return total;
}

void Snapshot::place(const std::vector<bool>& chosen) {
  const auto add = [this](const at::Tensor& tensor) {
    const int64_t begin = bytes_;
    bytes_ += aligned(byte_count(tensor));
    return tensor.defined() ? begin : -1;
  };
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (chosen[i]) places_[i] = {add(tensors_[i].state.values), add(tensors_[i].state.remainder)};
  }
}

void Snapshot::start(const std::vector<bool>& chosen) {
  memory_->reserve(bytes(tensors_, chosen));
  place(chosen);
  memory_->memory().wait_prepared(bytes_);
  memory_->stream().reset();
  copy_tensors(/*fixed=*/false);  // the next forward changes them: before it
  memory_->stream().follow_current();
  launched_ = false;
  thread_ = std::thread([this] { copy_in_background(); });
}

void Snapshot::copy_in_background() {
  std::exception_ptr failure;
  try {
    copy_tensors(/*fixed=*/true);
    mark_slabs(bytes_ + HostMemory::slab_bytes - 1);
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  failure_ = failure;
  launched_ = true;
  changed_.notify_all();
}

void Snapshot::copy_tensors(bool fixed) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto& [values, remainder] = places_[i];
    if (values < 0 || tensors_[i].fixed != fixed) continue;
    copy(tensors_[i].state.values, values, fixed);
    if (remainder >= 0) copy(tensors_[i].state.remainder, remainder, fixed);
  }
}

// In pieces within slabs, which are pinned separately.
void Snapshot::copy(const at::Tensor& tensor, int64_t offset, bool fixed) {
  CopyStream& stream = memory_->stream();
  const auto* from = static_cast<const std::byte*>(tensor.const_data_ptr());
  const int64_t end = offset + byte_count(tensor);
  while (offset < end) {
    const int64_t slab_end = (offset / HostMemory::slab_bytes + 1) * HostMemory::slab_bytes;
    const int64_t step = std::min(end, slab_end) - offset;
    std::byte* const to = memory_->memory().data() + offset;
    fixed ? stream.copy(to, from, static_cast<size_t>(step))
          : stream.copy_in_current(to, from, static_cast<size_t>(step));
    offset += step;
    from += step;
    if (fixed) mark_slabs(offset);
  }
}

void Snapshot::mark_slabs(int64_t end) {
  constexpr int64_t most_in_flight = 4;  // other copies to the host wait behind them
  while ((marks_ + 1) * HostMemory::slab_bytes <= end) {
    memory_->stream().mark();
    {
      const std::lock_guard lock(mutex_);
      ++marks_;
      changed_.notify_all();
    }
    if (marks_ > most_in_flight) memory_->stream().wait(static_cast<size_t>(marks_ - most_in_flight - 1));
  }
}

void Snapshot::before_update() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return launched_; });
    if (failure_) std::rethrow_exception(failure_);
  }
  if (marks_ > 0) memory_->stream().let_current_wait(static_cast<size_t>(marks_ - 1));
}

const std::byte* Snapshot::wait(int64_t offset, int64_t bytes) {
  if (bytes > 0) {
    const int64_t mark = (offset + bytes - 1) / HostMemory::slab_bytes;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return marks_ > mark || failure_; });
    if (marks_ <= mark) std::rethrow_exception(failure_);
    lock.unlock();
    memory_->stream().wait(static_cast<size_t>(mark));
  }
  return memory_->memory().data() + offset;
}

std::shared_ptr<const void> Snapshot::read(size_t tensor, int64_t begin, int64_t end) {
  const auto [values, remainder] = places_[tensor];
  const StateTensor& state = tensors_[tensor].state;
  const auto part = [&](int64_t place, const at::Tensor& of) {
    const auto element = static_cast<int64_t>(of.element_size());
    return wait(place + begin * element, (end - begin) * element);
  };
  const std::byte* const high = part(values, state.values);
  if (remainder < 0) return {std::shared_ptr<const void>(), high};
  return join(high, part(remainder, state.remainder), end - begin);
}

}  // namespace teratron
