// Ordered byte streams between the processes of a job, over sockets or MPI. ProcessBackend defines the
// protocol on top.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "teratron/base/error.h"

namespace teratron {

using ByteSpan = std::span<const std::byte>;

/// Called on the transport's thread, never concurrently.
class TransportReceiver {
 public:
  virtual ~TransportReceiver() = default;
  virtual void on_bytes(int64_t from, ByteSpan bytes) = 0;
  /// The stream from this rank has ended: its process has exited or died.
  virtual void on_lost(int64_t from) = 0;
  /// This rank can no longer open or accept connections.
  virtual void on_failure(const Fault& fault) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Connections to other ranks that were opened so far; 0 where the transport does not know.
  virtual int64_t connections() const { return 0; }
  /// Where a rank listens that this one has called in vain so far; "" if they are connected.
  virtual std::string unanswered_address(int64_t /*rank*/) { return ""; }
  /// Starts delivering to `receiver`, until close(). Called once.
  virtual void start(TransportReceiver& receiver) = 0;
  /// Queues head and body for another rank, in order, keeping no references to them. Thread-safe; never waits
  /// for the peer. Bytes for a rank that has exited are dropped.
  virtual void send(int64_t to, ByteSpan head, ByteSpan body) = 0;
  /// Flushes the queues for at most a few seconds and stops. `failed`: the job has failed; do not wait for
  /// peers that are gone. The destructor disconnects.
  virtual void close(bool failed) = 0;
};

}  // namespace teratron
