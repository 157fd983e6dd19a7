#include "teratron/train/device/host_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// Makes pages resident; kernels before 5.14 do that at the first write to each.
void populate(std::byte* data, size_t bytes) {
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, which older headers lack
  constexpr size_t page = 4096;
  if (::madvise(data, bytes, populate_write) == 0) return;
  if (errno == ENOMEM) throw Fault("out of host memory", ExitCode::out_of_memory);
  for (size_t i = 0; i < bytes; i += page) static_cast<volatile std::byte*>(data)[i] = std::byte{0};
}

}  // namespace

HostMemory::HostMemory(int64_t bytes, CopyStream& stream) : bytes_(bytes), stream_(stream) {
  if (bytes == 0) return;
  void* const mapped =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Fault(fmt::format("out of host memory: {:.2f} GiB for the copy that --async-save writes",
                            static_cast<double>(bytes) / double(1U << 30)),
                ExitCode::out_of_memory);
  }
  data_ = static_cast<std::byte*>(mapped);
  ::madvise(mapped, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  thread_ = std::thread([this] { prepare(); });
}

HostMemory::~HostMemory() {
  if (!data_) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  thread_.join();
  for (int64_t begin = 0; begin < prepared_; begin += slab_bytes)
    stream_.unpin({data_ + begin, static_cast<size_t>(std::min(slab_bytes, bytes_ - begin))});
  ::munmap(data_, static_cast<size_t>(bytes_));
}

void HostMemory::prepare() {
  try {
    for (int64_t begin = 0; begin < bytes_; begin += slab_bytes) {
      const std::span<std::byte> slab(data_ + begin,
                                      static_cast<size_t>(std::min(slab_bytes, bytes_ - begin)));
      populate(slab.data(), slab.size());
      stream_.pin(slab);
      const std::lock_guard lock(mutex_);
      prepared_ = begin + static_cast<int64_t>(slab.size());
      changed_.notify_all();
      if (stop_) return;
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

void HostMemory::wait_prepared(int64_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return prepared_ >= bytes || failure_; });
  if (prepared_ < bytes) std::rethrow_exception(failure_);
}

}  // namespace teratron
