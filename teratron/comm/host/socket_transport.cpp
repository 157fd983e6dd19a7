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
#include "teratron/comm/host/flight_recorder.h"
#include "teratron/comm/rendezvous/greeting.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kReadBytes = size_t{1} << 18;
constexpr std::chrono::seconds kFlushTimeout{2};  // for flushing queues at close()

class SocketTransport final : public Transport {
 public:
  SocketTransport(int64_t rank, std::vector<FileDescriptor> sockets)
      : rank_(rank), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), peers_(sockets.size()) {
    for (size_t i = 0; i < sockets.size(); ++i) {
      peers_[i].open = sockets[i].get() >= 0;
      peers_[i].socket = std::move(sockets[i]);
    }
  }

  ~SocketTransport() override { stop(); }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(peers_.size()); }

  void start(TransportReceiver& receiver) override {
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
    FileDescriptor socket;
    std::mutex mutex;  // guards the following
    std::deque<std::vector<std::byte>> queue;
    size_t written = 0;  // bytes of queue.front()
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

  /// Writes what the kernel accepts without blocking; the rest is queued. The receiving thread handles
  /// errors.
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

  /// Descriptors to poll: the wake-up event, then the peers listed in `ranks`. False: no bytes are queued.
  bool gather(std::vector<pollfd>& polled, std::vector<int64_t>& ranks) {
    bool queued = false;
    polled.assign(1, {wake_.get(), POLLIN, 0});
    ranks.assign(1, -1);
    for (int64_t i = 0; i < size(); ++i) {
      Peer& peer = peers_[i];
      const std::lock_guard lock(peer.mutex);
      if (!peer.open) continue;
      const bool waiting = !peer.queue.empty();
      queued = queued || waiting;
      polled.push_back({peer.socket.get(), static_cast<short>(POLLIN | (waiting ? POLLOUT : 0)), 0});
      ranks.push_back(i);
    }
    return queued;
  }

  void serve() {
    std::vector<pollfd> polled;
    std::vector<int64_t> ranks;
    std::optional<Clock::time_point> deadline;
    while (true) {
      const bool queued = gather(polled, ranks);
      if (stopping_ && !deadline) deadline = Clock::now() + kFlushTimeout;
      if (deadline && (!queued || Clock::now() >= *deadline)) return;
      if (poll(polled.data(), polled.size(), deadline ? milliseconds_until(*deadline) : -1) < 0) continue;
      uint64_t events = 0;
      if (polled[0].revents) [[maybe_unused]]
        const ssize_t got = read(wake_.get(), &events, sizeof(events));
      for (size_t i = 1; i < polled.size(); ++i) {
        if (polled[i].revents & POLLOUT) drain(peers_[ranks[i]]);
        if (polled[i].revents & ~POLLOUT) read_from(ranks[i]);
      }
    }
  }

  const int64_t rank_;
  const FileDescriptor wake_;
  std::vector<Peer> peers_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kReadBytes);
  TransportReceiver* receiver_ = nullptr;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

/// Connects to the lower ranks and accepts connections from the higher ones.
class Connector {
 public:
  Connector(const SocketPeers& peers, std::chrono::milliseconds timeout)
      : peers_(peers),
        timeout_(timeout),
        deadline_(Clock::now() + timeout),
        sockets_(peers.addresses.size()) {}

  void connect(int64_t rank) {
    const SocketAddress& to = peers_.addresses[rank];
    const Greeting greeting{.purpose = Greeting::Purpose::transport,
                            .caller = peers_.rank,
                            .called = rank,
                            .size = static_cast<int64_t>(sockets_.size())};
    while (true) {
      FileDescriptor connection = connect_to(to.address, to.port);
      const bool open = connection.get() >= 0;
      Call call(std::move(connection), greeting, key_of(rank));
      const bool greeted = open && call.greet(deadline_) == Call::Answer::greeted;
      if (greeted && call.prove("", deadline_)) return add(rank, std::move(call.connection()));
      if (Clock::now() >= deadline_) fail({rank}, "");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  void accept_higher_ranks(FileDescriptor listener) {
    Reception reception(
        std::move(listener),
        {.purpose = Greeting::Purpose::transport, .called = peers_.rank, .key = key_of(peers_.rank)});
    while (true) {
      std::vector<int64_t> missing;
      for (size_t i = peers_.rank + 1; i < sockets_.size(); ++i) {
        if (sockets_[i].get() < 0) missing.push_back(static_cast<int64_t>(i));
      }
      if (missing.empty()) return;
      std::optional<Reception::Caller> caller = reception.next(deadline_);
      if (!caller) fail(missing, reception.strangers());
      const bool expected = std::find(missing.begin(), missing.end(), caller->rank) != missing.end();
      if (expected) add(caller->rank, std::move(caller->connection));
    }
  }

  std::vector<FileDescriptor> take() { return std::move(sockets_); }

 private:
  std::string key_of(int64_t called) const {
    return fmt::format("{} {}", peers_.secret, peers_.addresses[called].token);
  }

  void add(int64_t rank, FileDescriptor connection) {
    const int yes = 1;
    setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    sockets_[rank] = std::move(connection);
  }

  [[noreturn]] void fail(const std::vector<int64_t>& missing, const std::string& strangers) const {
    const double seconds = std::chrono::duration<double>(timeout_).count();
    throw Fault(fmt::format("rank {} could not connect to {} within {:g} s{}{}", peers_.rank,
                            describe_ranks(missing), seconds, strangers.empty() ? "" : ". ", strangers));
  }

  const SocketPeers& peers_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point deadline_;
  std::vector<FileDescriptor> sockets_;
};

}  // namespace

std::unique_ptr<Transport> connect_sockets(const SocketPeers& peers, FileDescriptor listener,
                                           std::chrono::milliseconds timeout) {
  Connector connector(peers, timeout);
  for (int64_t rank = 0; rank < peers.rank; ++rank) connector.connect(rank);
  connector.accept_higher_ranks(std::move(listener));
  return std::make_unique<SocketTransport>(peers.rank, connector.take());
}

}  // namespace teratron
