// What a rank saves, as host memory that the writers of a checkpoint read: in place, through small pinned
// buffers, or from a copy that is taken while training continues.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/device/host_memory.h"
#include "teratron/optim/optimizer.h"

namespace teratron {

struct SavedTensor {
  StateTensor state;
  bool fixed = true;  // only the optimizer changes it; else forward and backward do, too
};

/// Reads parts of device tensors from several threads at once, each through one of `count` pinned buffers. In
/// place on a CPU.
class DeviceReader {
 public:
  /// Reads follow the work launched so far on the current stream.
  DeviceReader(at::Device device, size_t count);
  /// Elements [begin, end) of the tensor; at most Manifest::block_bytes.
  std::shared_ptr<const void> read(const StateTensor& state, int64_t begin, int64_t end);

 private:
  struct Buffer {
    explicit Buffer(at::Device device);
    std::unique_ptr<CopyStream> stream;
    HostMemory memory;
  };
  std::shared_ptr<Buffer> acquire();
  bool on_cpu_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Buffer>> free_;
};

/// Host memory for one copy of what a rank writes; used by one save after the other.
class SnapshotMemory {
 public:
  explicit SnapshotMemory(at::Device device) : stream_(make_copy_stream(device)) {}
  /// Prepares `bytes` in the background unless there is as much already. No save may be using it.
  void reserve(int64_t bytes);
  CopyStream& stream() { return *stream_; }
  HostMemory& memory() { return *memory_; }

 private:
  std::unique_ptr<CopyStream> stream_;
  std::unique_ptr<HostMemory> memory_;
};

/// A copy of tensors as they are after the work launched so far. A thread launches it piece by piece on a
/// separate stream, beside the next forward and backward: thousands of copies at once would fill the queue
/// of launches and hold up the caller. Bounded: the bytes of the tensors, on the host.
class Snapshot {
 public:
  Snapshot(std::vector<SavedTensor> tensors, std::shared_ptr<SnapshotMemory> memory);
  /// Waits for the copies, which read the tensors.
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Host bytes of a copy of the chosen tensors.
  static int64_t bytes(const std::vector<SavedTensor>& tensors, const std::vector<bool>& chosen);
  /// Starts to copy the chosen tensors. Fault(out_of_memory) if there is no host memory.
  void start(const std::vector<bool>& chosen);
  /// The optimizer must not change the tensors before: the host waits until all copies are launched, and the
  /// current stream until they are done.
  void before_update();
  /// Elements [begin, end) of a tensor; waits for their copy. Any thread.
  std::shared_ptr<const void> read(size_t tensor, int64_t begin, int64_t end);

 private:
  struct Place {
    int64_t values = -1;  // offsets in the memory
    int64_t remainder = -1;
  };
  void place(const std::vector<bool>& chosen);
  void copy_tensors(bool fixed);
  void copy(const at::Tensor& tensor, int64_t offset, bool fixed);
  void copy_in_background();
  void mark_slabs(int64_t end);
  const std::byte* wait(int64_t offset, int64_t bytes);

  std::vector<SavedTensor> tensors_;
  std::shared_ptr<SnapshotMemory> memory_;
  std::vector<Place> places_;
  int64_t bytes_ = 0;  // of the copy
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t marks_ = 0;  // one per slab, set when the copies of all of it are launched
  bool launched_ = true;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace teratron
