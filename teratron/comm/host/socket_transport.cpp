#include "teratron/comm/host/socket_transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/comm/host/call.h"
#include "teratron/comm/host/socket_connect.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kReadBytes = size_t{1} << 18;
constexpr std::chrono::seconds kLastWords{2};  // how long queued bytes are still delivered at the end
constexpr std::chrono::seconds kGreeting{5};   // how long a stranger may take to say who it is

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1000));
}

class SocketWire final : public Wire {
 public:
  SocketWire(int64_t rank, std::vector<Descriptor> sockets)
      : rank_(rank), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), peers_(sockets.size()) {
    for (size_t i = 0; i < sockets.size(); ++i) {
      peers_[i].open = sockets[i].get() >= 0;
      peers_[i].socket = std::move(sockets[i]);
    }
  }

  ~SocketWire() override { stop(); }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(peers_.size()); }

  void start(WireReceiver& receiver) override {
    receiver_ = &receiver;
    thread_ = std::thread([this] { serve(); });
  }

  void close(bool /*failed*/) override { stop(); }

  void send(int64_t to, ByteSpan head, ByteSpan body) override {
    Peer& peer = peers_[to];
    const std::lock_guard lock(peer.mutex);
    if (!peer.open) return;
    if (peer.queue.empty()) write_now(peer, head, body);
    if (head.empty() && body.empty()) return;
    std::vector<std::byte> rest(head.begin(), head.end());
    rest.insert(rest.end(), body.begin(), body.end());
    peer.queue.push_back(std::move(rest));
    wake_up();
  }

 private:
  struct Peer {
    Descriptor socket;
    std::mutex mutex;  // of what follows
    std::deque<std::vector<std::byte>> queue;
    size_t written = 0;  // of the first in the queue
    bool open = false;
  };

  void stop() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    wake_up();
    thread_.join();
  }

  void wake_up() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  }

  /// What the kernel takes at once is not copied into the queue. An error shows up in the reading thread.
  static void write_now(const Peer& peer, ByteSpan& head, ByteSpan& body) {
    while (!head.empty() || !body.empty()) {
      std::array<iovec, 2> pieces = {iovec{const_cast<std::byte*>(head.data()), head.size()},
                                     iovec{const_cast<std::byte*>(body.data()), body.size()}};
      const msghdr message{.msg_iov = pieces.data(), .msg_iovlen = pieces.size()};
      const ssize_t sent = sendmsg(peer.socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent <= 0) return;
      const size_t of_head = std::min(head.size(), static_cast<size_t>(sent));
      head = head.subspan(of_head);
      body = body.subspan(static_cast<size_t>(sent) - of_head);
    }
  }

  static void drain(Peer& peer) {
    const std::lock_guard lock(peer.mutex);
    while (!peer.queue.empty()) {
      ByteSpan rest = ByteSpan(peer.queue.front()).subspan(peer.written), nothing;
      const size_t before = rest.size();
      write_now(peer, rest, nothing);
      peer.written += before - rest.size();
      if (!rest.empty()) return;
      peer.queue.pop_front();
      peer.written = 0;
    }
  }

  void lose(int64_t rank) {
    Peer& peer = peers_[rank];
    {
      const std::lock_guard lock(peer.mutex);
      peer.open = false;
      peer.queue.clear();
    }
    receiver_->on_lost(rank);
  }

  void read_from(int64_t rank) {
    const ssize_t got = recv(peers_[rank].socket.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got > 0) return receiver_->on_bytes(rank, {buffer_.data(), static_cast<size_t>(got)});
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) lose(rank);
  }

  /// What to wait for: the wake-up call first, then the peers that `places` names. False: nothing is queued.
  bool gather(std::vector<pollfd>& polled, std::vector<int64_t>& places) {
    bool queued = false;
    polled.assign(1, {wake_.get(), POLLIN, 0});
    places.assign(1, -1);
    for (int64_t i = 0; i < size(); ++i) {
      Peer& peer = peers_[i];
      const std::lock_guard lock(peer.mutex);
      if (!peer.open) continue;
      const bool waiting = !peer.queue.empty();
      queued = queued || waiting;
      polled.push_back({peer.socket.get(), static_cast<short>(POLLIN | (waiting ? POLLOUT : 0)), 0});
      places.push_back(i);
    }
    return queued;
  }

  void serve() {
    std::vector<pollfd> polled;
    std::vector<int64_t> places;
    std::optional<Clock::time_point> deadline;
    while (true) {
      const bool queued = gather(polled, places);
      if (stopping_ && !deadline) deadline = Clock::now() + kLastWords;
      if (deadline && (!queued || Clock::now() >= *deadline)) return;
      if (poll(polled.data(), polled.size(), deadline ? milliseconds_until(*deadline) : -1) < 0) continue;
      uint64_t calls = 0;
      if (polled[0].revents) [[maybe_unused]]
        const ssize_t got = read(wake_.get(), &calls, sizeof(calls));
      for (size_t i = 1; i < polled.size(); ++i) {
        if (polled[i].revents & POLLOUT) drain(peers_[places[i]]);
        if (polled[i].revents & ~POLLOUT) read_from(places[i]);
      }
    }
  }

  const int64_t rank_;
  const Descriptor wake_;
  std::vector<Peer> peers_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kReadBytes);
  WireReceiver* receiver_ = nullptr;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

/// The first bytes on a connection: who calls, and the token of whom is called.
struct Greeting {
  int64_t rank = -1;
  std::array<char, 32> token{};
};

Greeting greeting_of(int64_t rank, const SocketAddress& called) {
  Greeting greeting{.rank = rank};
  called.token.copy(greeting.token.data(), greeting.token.size());
  return greeting;
}

/// The rank that calls; -1 if it is none of ours.
int64_t read_greeting(const Descriptor& connection, const SocketAddress& own, int64_t size) {
  const timeval patience{.tv_sec = kGreeting.count()}, forever{};
  setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  Greeting greeting;
  const ssize_t got = recv(connection.get(), &greeting, sizeof(greeting), MSG_WAITALL);
  setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof(forever));
  const bool ours = got == sizeof(greeting) && greeting.token == greeting_of(0, own).token;
  return ours && greeting.rank > 0 && greeting.rank < size ? greeting.rank : -1;
}

/// A lower rank is called, a higher one calls.
class Connector {
 public:
  Connector(const SocketPlaces& places, std::chrono::milliseconds timeout)
      : places_(places),
        own_(places.addresses[places.rank]),
        timeout_(timeout),
        deadline_(Clock::now() + timeout),
        sockets_(places.addresses.size()) {}

  void call(int64_t rank) {
    const SocketAddress& to = places_.addresses[rank];
    Descriptor connection;
    while ((connection = connect_to(to.address, to.port)).get() < 0) {
      if (Clock::now() >= deadline_) fail({rank});
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    const Greeting greeting = greeting_of(places_.rank, to);
    if (::send(connection.get(), &greeting, sizeof(greeting), MSG_NOSIGNAL) != sizeof(greeting)) fail({rank});
    keep(rank, std::move(connection));
  }

  void accept_from_above(const Descriptor& listener) {
    while (true) {
      std::vector<int64_t> missing;
      for (size_t i = places_.rank + 1; i < sockets_.size(); ++i) {
        if (sockets_[i].get() < 0) missing.push_back(static_cast<int64_t>(i));
      }
      if (missing.empty()) return;
      if (Clock::now() >= deadline_) fail(missing);
      pollfd polled{listener.get(), POLLIN, 0};
      if (poll(&polled, 1, milliseconds_until(deadline_)) <= 0) continue;
      Descriptor connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (connection.get() < 0) continue;
      const int64_t rank = read_greeting(connection, own_, static_cast<int64_t>(sockets_.size()));
      if (rank > places_.rank) keep(rank, std::move(connection));
    }
  }

  std::vector<Descriptor> take() { return std::move(sockets_); }

 private:
  void keep(int64_t rank, Descriptor connection) {
    const int yes = 1;
    setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    sockets_[rank] = std::move(connection);
  }

  [[noreturn]] void fail(const std::vector<int64_t>& missing) const {
    const double seconds = std::chrono::duration<double>(timeout_).count();
    throw Fault(fmt::format("rank {} got no connection with {} within {:g} s", places_.rank,
                            ranks_in_words(missing), seconds));
  }

  const SocketPlaces& places_;
  const SocketAddress& own_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point deadline_;
  std::vector<Descriptor> sockets_;
};

}  // namespace

std::unique_ptr<Wire> connect_sockets(const SocketPlaces& places, Descriptor listener,
                                      std::chrono::milliseconds timeout) {
  Connector connector(places, timeout);
  for (int64_t rank = 0; rank < places.rank; ++rank) connector.call(rank);
  connector.accept_from_above(listener);
  return std::make_unique<SocketWire>(places.rank, connector.take());
}

}  // namespace teratron
