#include "teratron/device/host_memory.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include <sys/mman.h>

#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"
#include "teratron/device/available_memory.h"

namespace teratron {

namespace {

constexpr int64_t reserve_bytes = int64_t{1} << 30;  // that others may need

// Makes pages resident; kernels before 5.14 do that at the first write to each.
void populate(std::byte* data, size_t bytes) {
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, which older headers lack
  constexpr size_t page = 4096;
  if (::madvise(data, bytes, populate_write) == 0) return;
  if (errno == ENOMEM) throw Fault("out of host memory");
  for (size_t i = 0; i < bytes; i += page) static_cast<volatile std::byte*>(data)[i] = std::byte{0};
}

}  // namespace

HostMemory::HostMemory(int64_t bytes, CopyStream& stream) : bytes_(bytes), stream_(stream) {
  if (bytes == 0) return;
  thread_ = std::thread([this] { prepare(); });
}

HostMemory::~HostMemory() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
  for (int64_t begin = 0; begin < prepared_; begin += slab_bytes)
    stream_.unpin({data_ + begin, static_cast<size_t>(std::min(slab_bytes, bytes_ - begin))});
  if (data_) ::munmap(data_, static_cast<size_t>(bytes_));
}

void HostMemory::prepare() {
  try {
    fault_point("host_memory.prepare");
    void* const mapped = ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw Fault("no address space");
    data_ = static_cast<std::byte*>(mapped);
    ::madvise(mapped, static_cast<size_t>(bytes_), MADV_HUGEPAGE);
    for (int64_t begin = 0; begin < bytes_ && !stop_; begin += slab_bytes) prepare_slab(begin);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    failure_ = fmt::format("{:.1f} GiB of host memory cannot be prepared: {}",
                           static_cast<double>(bytes_) / double(1U << 30), error.what());
    changed_.notify_all();
  }
}

void HostMemory::prepare_slab(int64_t begin) {
  const std::span<std::byte> slab(data_ + begin, static_cast<size_t>(std::min(slab_bytes, bytes_ - begin)));
  const int64_t left = available_host_memory() - static_cast<int64_t>(slab.size());
  if (left < reserve_bytes && bytes_ > slab_bytes) {
    throw Fault(fmt::format("only {:.1f} GiB would be left", static_cast<double>(left) / double(1U << 30)));
  }
  populate(slab.data(), slab.size());
  stream_.pin(slab);
  const std::lock_guard lock(mutex_);
  prepared_ = begin + static_cast<int64_t>(slab.size());
  changed_.notify_all();
}

void HostMemory::wait_prepared(int64_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return prepared_ >= bytes || !failure_.empty(); });
  if (prepared_ < bytes) throw Fault(failure_, ExitCode::out_of_memory);
}

}  // namespace teratron
