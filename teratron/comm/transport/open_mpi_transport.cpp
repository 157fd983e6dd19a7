// libteratron_mpi.so (see mpi_transport.h). All MPI calls come from one thread, MPI's main thread:
// MPI_THREAD_FUNNELED suffices.
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <mpi.h>

#include "teratron/comm/transport/transport.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::microseconds;
constexpr size_t kMaxMessageBytes = size_t{1} << 26;  // MPI counts are int
constexpr Microseconds kMinSleep{20}, kMaxSleep{1000};
constexpr std::chrono::seconds kFlushTimeout{2};

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    std::promise<bool> initialized;
    std::future<bool> result = initialized.get_future();
    thread_ = std::thread([this, promise = std::move(initialized)]() mutable {
      const bool ok = initialize();
      promise.set_value(ok);
      if (ok) serve();
    });
    ok_ = result.get();
  }

  ~MpiTransport() override { stop(true); }

  bool ok() const { return ok_; }
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }

  void start(TransportReceiver& receiver) override {
    const std::lock_guard lock(mutex_);
    receiver_ = &receiver;
    changed_.notify_all();
  }

  void send(int64_t to, ByteSpan head, ByteSpan body) override {
    std::vector<std::byte> bytes(head.begin(), head.end());
    bytes.insert(bytes.end(), body.begin(), body.end());
    const std::lock_guard lock(mutex_);
    queue_.emplace_back(to, std::move(bytes));
    changed_.notify_all();
  }

  void close(bool failed) override { stop(failed); }

 private:
  struct Sending {
    std::vector<std::byte> bytes;
    std::vector<MPI_Request> requests;
  };

  void stop(bool failed) {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      failed_ = failed;
    }
    changed_.notify_all();
    thread_.join();
  }

  bool initialize() {
    int provided = 0, rank = 0, size = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return false;
    MPI_Comm_dup(MPI_COMM_WORLD, &communicator_);
    MPI_Comm_rank(communicator_, &rank);
    MPI_Comm_size(communicator_, &size);
    rank_ = rank;
    size_ = size;
    return true;
  }

  void begin(int64_t to, std::vector<std::byte> bytes) {
    Sending& sending = sending_.emplace_back();
    sending.bytes = std::move(bytes);
    for (size_t at = 0; at < sending.bytes.size(); at += kMaxMessageBytes) {
      const size_t count = std::min(kMaxMessageBytes, sending.bytes.size() - at);
      MPI_Isend(sending.bytes.data() + at, static_cast<int>(count), MPI_BYTE, static_cast<int>(to), 0,
                communicator_, &sending.requests.emplace_back());
    }
  }

  /// True if a message was received.
  bool receive() {
    int pending = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    MPI_Improbe(MPI_ANY_SOURCE, 0, communicator_, &pending, &message, &status);
    if (!pending) return false;
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (buffer_.size() < static_cast<size_t>(count)) buffer_.resize(count);
    MPI_Mrecv(buffer_.data(), count, MPI_BYTE, &message, &status);
    receiver_->on_bytes(status.MPI_SOURCE, {buffer_.data(), static_cast<size_t>(count)});
    return true;
  }

  void progress_sends() {
    sending_.remove_if([](Sending& sending) {
      int done = 0;
      MPI_Testall(static_cast<int>(sending.requests.size()), sending.requests.data(), &done,
                  MPI_STATUSES_IGNORE);
      return done != 0;
    });
  }

  void serve() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return receiver_ || stopping_; });
    Microseconds sleep = kMinSleep;
    Clock::time_point deadline = Clock::time_point::max();
    while (true) {
      std::deque<std::pair<int64_t, std::vector<std::byte>>> queue = std::exchange(queue_, {});
      if (stopping_ && deadline == Clock::time_point::max()) deadline = Clock::now() + kFlushTimeout;
      const bool leaving = stopping_ && queue.empty() && (sending_.empty() || Clock::now() >= deadline);
      if (leaving) break;
      lock.unlock();
      const bool busy = !queue.empty();
      for (auto& [to, bytes] : queue) begin(to, std::move(bytes));
      bool received = false;
      while (receiver_ && receive()) received = true;
      progress_sends();
      lock.lock();
      // MPI cannot wake this thread: sleep longer while it is idle.
      sleep = busy || received ? kMinSleep : std::min(sleep * 2, kMaxSleep);
      if (queue_.empty() && !stopping_) changed_.wait_for(lock, sending_.empty() ? sleep : kMinSleep);
    }
    // Collective: after a failure the peers may never call it.
    if (!failed_) MPI_Finalize();
  }

  bool ok_ = false;
  int64_t rank_ = 0, size_ = 1;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::list<Sending> sending_;             // used by thread_ only
  std::vector<std::byte> buffer_;          // used by thread_ only
  TransportReceiver* receiver_ = nullptr;  // guarded by mutex_, as the following
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, std::vector<std::byte>>> queue_;
  bool stopping_ = false, failed_ = false;
  std::thread thread_;
};

}  // namespace
}  // namespace teratron

extern "C" __attribute__((visibility("default"))) teratron::Transport* teratron_connect_mpi() {
  auto transport = std::make_unique<teratron::MpiTransport>();
  return transport->ok() ? transport.release() : nullptr;
}

/// Writes at most `capacity` characters.
extern "C" __attribute__((visibility("default"))) void teratron_mpi_version(char* text, size_t capacity) {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> whole{};
  int length = 0;
  MPI_Get_library_version(whole.data(), &length);
  std::copy_n(whole.data(), std::min(capacity, whole.size()), text);
}
