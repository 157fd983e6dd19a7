// A client's connection, read and written by one thread: a stream of requests, each with an end.
//
// Every request has a time to arrive, and every piece of an answer a time to be taken: slow, half-open and
// dead clients hold their thread no longer. is_writable() is false once the client has closed its side.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>

#include <httplib.h>

#include "teratron/serve/chunked_body.h"
#include "teratron/serve/request_head.h"

namespace teratron {

struct ConnectionTimes {
  std::chrono::milliseconds request{60'000};  // from its first byte to its last
  std::chrono::milliseconds write{30'000};    // of one piece
  std::chrono::milliseconds idle{15'000};     // between two requests
};

class Connection final : public httplib::Stream {
 public:
  /// Owns the socket. A body in chunks may have at most `max_body_bytes`.
  Connection(int socket, const ConnectionTimes& times, size_t max_body_bytes);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Whether a request begins before the idle time ends. The time for the request starts then.
  bool wait_request();
  /// Reads the head of the request, which read() then returns, and after it the body. False: the head is
  /// refused (refusal()), or the client has left or is too slow.
  bool read_head();
  /// Why the head, or the body as far as it was read, is refused.
  const std::optional<Refusal>& refusal() const { return refusal_; }
  /// Discards what was not read of the request. False: too much is left, and the connection must end.
  bool finish_request();
  /// The client still reads: it has neither closed its side nor reset the connection.
  bool is_open() const;
  /// Ends what other threads wait for on this connection.
  void interrupt();
  /// Discards what the client sends to a request that was refused, some of it, so that it gets the answer.
  void linger();

  // httplib::Stream
  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  /// httplib refuses sockets of high numbers here, since its own streams cannot wait for them.
  socket_t socket() const override { return 0; }

 private:
  using Clock = std::chrono::steady_clock;
  bool wait(short events, Clock::time_point until) const;
  ssize_t receive(char* data, size_t size);
  /// Fills the buffer, which is empty; false at the end.
  bool fill_buffer();
  ssize_t read_bytes(char* data, size_t size);
  ssize_t read_body(char* data, size_t size);

  int socket_;
  ConnectionTimes times_;
  size_t max_body_bytes_;
  Clock::time_point deadline_;
  // Read ahead.
  std::array<char, 4096> buffer_;
  size_t begin_ = 0, end_ = 0;
  // The request's.
  std::string head_;
  size_t head_read_ = 0;
  uint64_t body_left_ = 0;
  std::optional<ChunkedBody> chunks_;
  std::optional<Refusal> refusal_;
};

}  // namespace teratron
