#include "teratron/comm/transport/socket_transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/comm/transport/descriptor_limit.h"
#include "teratron/comm/transport/socket_tree.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kReadBytes = size_t{1} << 18;
constexpr std::chrono::seconds kFlushTimeout{2};        // for flushing queues at close()
constexpr std::chrono::milliseconds kDialTimeout{500};  // for ranks not yet connected, at close()
constexpr std::chrono::milliseconds kDialInterval{100};

/// Two ranks may call each other at the same time: then there are two connections, and each sends all of its
/// bytes over the one that it saw first, so that they stay in order.
class SocketTransport final : public Transport {
 public:
  SocketTransport(const SocketPeers& peers, std::unique_ptr<Reception> reception, SocketTree tree)
      : rank_(peers.rank),
        key_(peers.key),
        addresses_(std::move(tree.addresses)),
        reception_(std::move(reception)),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_.get() < 0 || wake_.get() < 0) check_descriptors(errno, "messages of other ranks");
    watch(wake_.get(), EPOLLIN, EPOLL_CTL_ADD);
    watch(reception_->fd(), EPOLLIN, EPOLL_CTL_ADD);
    for (auto& [rank, connection] : tree.neighbours) adopt(rank, std::move(connection));
    for (auto& [rank, connection] : tree.others) adopt(rank, std::move(connection));
  }

  ~SocketTransport() override { stop(); }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return addresses_.size(); }
  int64_t connections() const override { return opened_; }

  void start(TransportReceiver& receiver) override {
    receiver_ = &receiver;
    thread_ = std::thread([this] { serve(); });
  }

  void close(bool /*failed*/) override { stop(); }

  std::string unanswered_address(int64_t rank) override {
    Peer& peer = peer_of(rank);
    const std::lock_guard lock(peer.mutex);
    if (peer.out >= 0) return "";
    const SocketAddress address = addresses_.at(rank);
    return fmt::format("{}:{}", address.address, address.port);
  }

  void send(int64_t to, ByteSpan head, ByteSpan body) override {
    Peer& peer = peer_of(to);
    {
      const std::lock_guard lock(peer.mutex);
      if (peer.lost) return;
      if (peer.queue.empty() && peer.out >= 0) write_now(peer.out, head, body);
      if (head.empty() && body.empty()) return;
      std::vector<std::byte> rest(head.begin(), head.end());
      rest.insert(rest.end(), body.begin(), body.end());
      peer.queue.push_back(std::move(rest));
    }
    {
      const std::lock_guard lock(mutex_);
      queued_.push_back(to);
    }
    wake_up();
  }

 private:
  struct Peer {
    std::mutex mutex;  // guards the following
    std::deque<std::vector<std::byte>> queue;
    size_t written = 0;  // bytes of queue.front()
    int out = -1;        // what is sent goes over this connection; -1: none yet
    bool lost = false;
    bool calling = false;  // used by the thread only
  };
  struct Connection {
    int64_t peer = 0;
    FileDescriptor socket;     // once greeted
    std::optional<Dial> dial;  // until then
  };

  Peer& peer_of(int64_t rank) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Peer>& peer = peers_[rank];
    if (!peer) peer = std::make_unique<Peer>();
    return *peer;
  }

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

  void watch(int fd, uint32_t events, int operation) const {
    epoll_event event{.events = events, .data = {.fd = fd}};
    epoll_ctl(epoll_.get(), operation, fd, &event);
  }

  /// Writes what the kernel accepts without blocking; the rest is queued. The receiving thread handles
  /// errors.
  static void write_now(int fd, ByteSpan& head, ByteSpan& body) {
    while (!head.empty() || !body.empty()) {
      std::array<iovec, 2> pieces = {iovec{const_cast<std::byte*>(head.data()), head.size()},
                                     iovec{const_cast<std::byte*>(body.data()), body.size()}};
      const msghdr message{.msg_iov = pieces.data(), .msg_iovlen = pieces.size()};
      const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent <= 0) return;
      const size_t of_head = std::min(head.size(), static_cast<size_t>(sent));
      head = head.subspan(of_head);
      body = body.subspan(static_cast<size_t>(sent) - of_head);
    }
  }

  /// Sends what is queued for a rank; calls it if it is not connected.
  void drain(int64_t rank) {
    Peer& peer = peer_of(rank);
    bool call_now = false;
    {
      const std::lock_guard lock(peer.mutex);
      call_now = peer.out < 0 && !peer.calling && !peer.lost;
      if (peer.out >= 0) {
        write_queue(peer);
        watch(peer.out, peer.queue.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
      }
    }
    if (call_now) call(rank);
  }

  static void write_queue(Peer& peer) {
    while (!peer.queue.empty()) {
      ByteSpan rest = ByteSpan(peer.queue.front()).subspan(peer.written), nothing;
      const size_t before = rest.size();
      write_now(peer.out, rest, nothing);
      peer.written += before - rest.size();
      if (!rest.empty()) return;
      peer.queue.pop_front();
      peer.written = 0;
    }
  }

  void call(int64_t rank) {
    peer_of(rank).calling = true;
    const SocketAddress address = addresses_.at(rank);
    FileDescriptor connection = begin_connecting(address.address, address.port);
    const int fd = connection.get();
    if (fd < 0) return lose(rank);
    const Greeting greeting{
        .purpose = Greeting::Purpose::transport, .caller = rank_, .called = rank, .size = size()};
    connections_[fd] = {.peer = rank, .dial = Dial(std::move(connection), greeting, key_)};
    watch(fd, EPOLLOUT, EPOLL_CTL_ADD);
  }

  void advance_dial(int fd) {
    Connection& connection = connections_.at(fd);
    const int64_t rank = connection.peer;
    switch (connection.dial->advance()) {
      case Dial::Progress::waiting:
        return watch(fd, EPOLLIN, EPOLL_CTL_MOD);
      case Dial::Progress::welcomed: {
        FileDescriptor socket = std::move(connection.dial->connection());
        connections_.erase(fd);
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
        peer_of(rank).calling = false;
        return adopt(rank, std::move(socket));
      }
      case Dial::Progress::closed:
        connections_.erase(fd);
        peer_of(rank).calling = false;
        retries_.push_back({Clock::now() + kDialInterval, rank});
        return;
      case Dial::Progress::refused:
        connections_.erase(fd);
        return lose(rank);
    }
  }

  void adopt(int64_t rank, FileDescriptor socket) {
    send_without_delay(socket);
    const int fd = socket.get();
    Peer& peer = peer_of(rank);
    ++opened_;
    {
      const std::lock_guard lock(peer.mutex);
      if (peer.out < 0) peer.out = fd;
    }
    connections_[fd] = {.peer = rank, .socket = std::move(socket)};
    watch(fd, EPOLLIN, EPOLL_CTL_ADD);
    drain(rank);
  }

  void lose(int64_t rank) {
    Peer& peer = peer_of(rank);
    {
      const std::lock_guard lock(peer.mutex);
      if (std::exchange(peer.lost, true)) return;
      peer.out = -1;
      peer.queue.clear();
    }
    std::erase_if(connections_, [&](const auto& item) { return item.second.peer == rank; });
    receiver_->on_lost(rank);
  }

  void read_from(int fd) {
    const int64_t rank = connections_.at(fd).peer;
    const ssize_t got = recv(fd, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got > 0) return receiver_->on_bytes(rank, {buffer_.data(), static_cast<size_t>(got)});
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) end_connection(fd);
  }

  /// A rank is lost with its last connection: what it said before may still arrive over another one.
  void end_connection(int fd) {
    const int64_t rank = connections_.at(fd).peer;
    const auto other = std::find_if(connections_.begin(), connections_.end(), [&](const auto& item) {
      return item.first != fd && item.second.peer == rank && !item.second.dial;
    });
    if (other == connections_.end()) return lose(rank);
    Peer& peer = peer_of(rank);
    const std::lock_guard lock(peer.mutex);
    if (peer.out == fd) peer.out = other->first;
    connections_.erase(fd);
  }

  /// A failure to open or accept connections is that of this rank: its peers see it end.
  void handle(const epoll_event& event) {
    const int fd = event.data.fd;
    if (fd == wake_.get()) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = read(fd, &count, sizeof(count));
      return;
    }
    if (fd == reception_->fd()) {
      while (std::optional<Reception::Caller> caller = reception_->next(Clock::now())) {
        if (caller->rank < size()) adopt(caller->rank, std::move(caller->connection));
      }
      return;
    }
    const auto found = connections_.find(fd);
    if (found == connections_.end()) return;  // lost meanwhile
    if (found->second.dial) return advance_dial(fd);
    if (event.events & EPOLLOUT) drain(found->second.peer);
    if (event.events & ~EPOLLOUT) read_from(fd);
  }

  void drain_queued() {
    std::vector<int64_t> ranks;
    {
      const std::lock_guard lock(mutex_);
      ranks = std::exchange(queued_, {});
    }
    const auto due = std::partition(retries_.begin(), retries_.end(),
                                    [](const auto& retry) { return retry.first > Clock::now(); });
    for (auto retry = due; retry != retries_.end(); ++retry) ranks.push_back(retry->second);
    retries_.erase(due, retries_.end());
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    for (const int64_t rank : ranks) drain(rank);
  }

  /// Whether bytes are queued for a rank that is connected, or for any.
  bool has_queued(bool connected) {
    const std::lock_guard lock(mutex_);
    return std::any_of(peers_.begin(), peers_.end(), [&](const auto& item) {
      const std::lock_guard peer_lock(item.second->mutex);
      return !item.second->queue.empty() && (!connected || item.second->out >= 0);
    });
  }

  bool may_end(Clock::time_point stopped) {
    const auto passed = Clock::now() - stopped;
    return passed > kFlushTimeout || !has_queued(/*connected=*/passed > kDialTimeout);
  }

  void serve() {
    std::array<epoll_event, 256> events;
    std::optional<Clock::time_point> stopped;
    buffer_.resize(kReadBytes);
    while (true) {
      try {
        drain_queued();
        if (stopping_ && !stopped) stopped = Clock::now();
        if (stopped && may_end(*stopped)) return;
        const int wait = stopped ? 20 : retries_.empty() ? -1 : static_cast<int>(kDialInterval.count());
        const int ready = epoll_wait(epoll_.get(), events.data(), events.size(), wait);
        for (int i = 0; i < ready; ++i) handle(events[i]);
      } catch (const Fault& fault) {
        receiver_->on_failure(fault);
        std::this_thread::sleep_for(kDialInterval);
      }
    }
  }

  const int64_t rank_;
  const std::string key_;
  const AddressTable addresses_;
  const std::unique_ptr<Reception> reception_;
  const FileDescriptor wake_, epoll_;
  std::mutex mutex_;  // guards the next two
  std::unordered_map<int64_t, std::unique_ptr<Peer>> peers_;
  std::vector<int64_t> queued_;  // ranks for which bytes were queued
  std::unordered_map<int, Connection>
      connections_;  // by descriptor; used by the thread only, as the next two
  std::vector<std::pair<Clock::time_point, int64_t>> retries_;  // ranks to call again
  std::vector<std::byte> buffer_;
  std::atomic<int64_t> opened_ = 0;
  TransportReceiver* receiver_ = nullptr;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Transport> connect_sockets(const SocketPeers& peers, FileDescriptor listener,
                                           std::chrono::milliseconds timeout) {
  raise_descriptor_limit();
  auto reception = std::make_unique<Reception>(std::move(listener), reception_options(peers));
  SocketTree tree = connect_tree(peers, *reception, timeout);
  return std::make_unique<SocketTransport>(peers, std::move(reception), std::move(tree));
}

}  // namespace teratron
