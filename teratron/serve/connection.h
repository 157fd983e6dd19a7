// A client's connection, read and written by one thread.
//
// Every request has a time to arrive, and every piece of an answer a time to be taken: slow, half-open and
// dead clients hold their thread no longer. is_writable() is false once the client has closed its side.
#pragma once

#include <array>
#include <chrono>
#include <string>

#include <httplib.h>

namespace teratron {

struct ConnectionTimes {
  std::chrono::milliseconds request{60'000};  // from its first byte to its last
  std::chrono::milliseconds write{30'000};    // of one piece
  std::chrono::milliseconds idle{15'000};     // between two requests
};

class Connection final : public httplib::Stream {
 public:
  /// Owns the socket. No request may have more than `max_bytes`, its headers included.
  Connection(int socket, const ConnectionTimes& times, size_t max_bytes);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Whether a request begins before the idle time ends. The time for the request starts then.
  bool wait_request();
  /// The client still reads: it has neither closed its side nor reset the connection.
  bool is_open() const;
  /// Ends what other threads wait for on this connection.
  void interrupt();
  /// Reads what is left of a request that was refused, a little of it, so that the client gets the answer.
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

  int socket_;
  ConnectionTimes times_;
  size_t max_bytes_, left_bytes_ = 0;
  Clock::time_point deadline_;
  // Read ahead: httplib asks for headers byte by byte.
  std::array<char, 4096> buffer_;
  size_t begin_ = 0, end_ = 0;
};

}  // namespace teratron
