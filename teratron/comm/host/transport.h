// Ordered streams of bytes between the processes of a job: what sockets or MPI have to provide. All meaning
// lies above, in ProcessRanks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace teratron {

using ByteSpan = std::span<const std::byte>;

/// Who takes what a wire delivers. Called on the wire's own thread, never by two threads at once.
class WireReceiver {
 public:
  virtual ~WireReceiver() = default;
  virtual void on_bytes(int64_t from, ByteSpan bytes) = 0;
  /// The stream from this rank has ended: its process has left or died.
  virtual void on_lost(int64_t from) = 0;
};

class Wire {
 public:
  virtual ~Wire() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Begins to deliver to `receiver`, until close(). Called once.
  virtual void start(WireReceiver& receiver) = 0;
  /// Queues head and body for another rank, in order. May be called by any thread; never waits for the peer;
  /// the caller keeps his memory. What is sent to a rank that has left is dropped.
  virtual void send(int64_t to, ByteSpan head, ByteSpan body) = 0;
  /// Sends what is still queued, as far as the peers take it within seconds, and stops. `failed`: the job has
  /// failed, and peers that have gone are not waited for. The destructor disconnects.
  virtual void close(bool failed) = 0;
};

}  // namespace teratron
