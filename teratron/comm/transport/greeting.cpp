#include "teratron/comm/transport/greeting.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/comm/transport/descriptor_limit.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kGreetingMagic = 0x7E4A6E01;
constexpr size_t kNonceBytes = 32;
constexpr size_t kAddressesNamed = 4;

struct Hello {
  uint32_t magic;
  Greeting::Purpose purpose;
  int64_t caller, called, size;
  std::array<char, kNonceBytes> nonce;
};

struct Challenge {
  uint32_t magic;
  std::array<char, kNonceBytes> nonce;
  Sha256Digest proof;
};

struct Proof {
  Sha256Digest proof;
  uint32_t text_bytes;
};

constexpr uint32_t kWelcome = kGreetingMagic ^ 1;

template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

template <typename T>
T parse_bytes(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

std::array<char, kNonceBytes> make_nonce() {
  std::array<char, kNonceBytes> nonce{};
  random_hex(kNonceBytes).copy(nonce.data(), nonce.size());  // 128 random bits
  return nonce;
}

Sha256Digest proof_of_called(const std::string& key, const std::string& challenged) {
  return hmac_sha256(key, "teratron called " + challenged);
}

Sha256Digest proof_of_caller(const std::string& key, const std::string& challenged, std::string_view text) {
  return hmac_sha256(key, fmt::format("teratron caller {}{}", challenged, text));
}

std::string hello_of(const Greeting& greeting) {
  return bytes_of(Hello{.magic = kGreetingMagic,
                        .purpose = greeting.purpose,
                        .caller = greeting.caller,
                        .called = greeting.called,
                        .size = greeting.size,
                        .nonce = make_nonce()});
}

}  // namespace

bool read_exactly(const FileDescriptor& connection, void* data, size_t size, SteadyTime deadline) {
  auto* to = static_cast<char*>(data);
  while (size > 0) {
    if (!wait_for_events(connection, POLLIN, deadline)) return false;
    const ssize_t got = recv(connection.get(), to, size, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return false;
    to += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool write_exactly(const FileDescriptor& connection, const void* data, size_t size, SteadyTime deadline) {
  const auto* from = static_cast<const char*>(data);
  while (size > 0) {
    if (!wait_for_events(connection, POLLOUT, deadline)) return false;
    const ssize_t sent = send(connection.get(), from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (sent < 0) return false;
    from += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

Call::Call(FileDescriptor connection, const Greeting& greeting, std::string key)
    : connection_(std::move(connection)), key_(std::move(key)), hello_(hello_of(greeting)) {}

Call::Answer Call::greet(SteadyTime deadline) {
  Challenge challenge;
  const bool answered = write_exactly(connection_, hello_.data(), hello_.size(), deadline) &&
                        read_exactly(connection_, &challenge, sizeof(challenge), deadline);
  if (!answered || challenge.magic != kGreetingMagic) return Answer::nothing;
  nonce_.assign(challenge.nonce.data(), challenge.nonce.size());
  const bool known = equal_digests(challenge.proof, proof_of_called(key_, hello_ + nonce_));
  return known ? Answer::greeted : Answer::other_secret;
}

bool Call::prove(const std::string& text, SteadyTime deadline) {
  TERATRON_ASSERT(text.size() <= kMaxGreetingText);
  const Proof proof{.proof = proof_of_caller(key_, hello_ + nonce_, text),
                    .text_bytes = static_cast<uint32_t>(text.size())};
  const std::string message = bytes_of(proof) + text;
  uint32_t answer = 0;
  return write_exactly(connection_, message.data(), message.size(), deadline) &&
         read_exactly(connection_, &answer, sizeof(answer), deadline) && answer == kWelcome;
}

Dial::Dial(FileDescriptor connection, const Greeting& greeting, std::string key)
    : connection_(std::move(connection)), key_(std::move(key)), hello_(hello_of(greeting)) {}

/// The buffer of a new connection has room.
bool Dial::write(const std::string& bytes) const {
  return send(connection_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

/// Welcomed: `size` bytes are there.
Dial::Progress Dial::read_up_to(size_t size) {
  std::array<char, 128> buffer;
  while (received_.size() < size) {
    const size_t most = std::min(buffer.size(), size - received_.size());
    const ssize_t got = recv(connection_.get(), buffer.data(), most, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Progress::waiting;
    if (got <= 0) return Progress::closed;
    received_.append(buffer.data(), static_cast<size_t>(got));
  }
  return Progress::welcomed;
}

Dial::Progress Dial::advance() {
  if (!said_hello_) {
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(connection_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == ECONNREFUSED) return Progress::refused;
    said_hello_ = error == 0 && write(hello_);
    if (!said_hello_) return Progress::closed;
  }
  if (!proven_) {
    if (const Progress progress = read_up_to(sizeof(Challenge)); progress != Progress::welcomed)
      return progress;
    const auto challenge = parse_bytes<Challenge>(received_);
    const std::string challenged = hello_ + std::string(challenge.nonce.data(), challenge.nonce.size());
    const bool known = challenge.magic == kGreetingMagic &&
                       equal_digests(challenge.proof, proof_of_called(key_, challenged));
    if (!known) return Progress::closed;
    proven_ = write(bytes_of(Proof{.proof = proof_of_caller(key_, challenged, ""), .text_bytes = 0}));
    received_.clear();
  }
  const Progress progress = read_up_to(sizeof(kWelcome));
  if (progress != Progress::welcomed) return progress;
  return parse_bytes<uint32_t>(received_) == kWelcome ? Progress::welcomed : Progress::closed;
}

Reception::Reception(FileDescriptor listener, Options options)
    : listener_(std::move(listener)), options_(std::move(options)), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_.get() < 0) check_descriptors(errno, "waiting for connections");
  fcntl(listener_.get(), F_SETFL, O_NONBLOCK);
  watch(listener_);
}

std::string Reception::address() const {
  return fmt::format("{}:{}", local_address(listener_), port_of(listener_));
}

void Reception::watch(const FileDescriptor& connection) const {
  epoll_event event{.events = EPOLLIN, .data = {.fd = connection.get()}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.get(), &event);
}

std::optional<Reception::Caller> Reception::next(SteadyTime deadline) {
  while (true) {
    for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
      const Progress progress = advance(*visitor);
      if (progress == Progress::waiting) {
        ++visitor;
        continue;
      }
      if (progress == Progress::refused) refuse(*visitor);
      Visitor done = std::move(*visitor);
      visitor = visitors_.erase(visitor);
      if (progress == Progress::refused) continue;
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, done.connection.get(), nullptr);
      if (std::optional<Caller> caller = welcome(std::move(done))) return caller;
    }
    const bool last = Clock::now() >= deadline;
    std::array<epoll_event, 64> events;
    const int ready = epoll_wait(epoll_.get(), events.data(), events.size(), milliseconds_until(deadline));
    const bool calls =
        std::any_of(events.begin(), events.begin() + std::max(ready, 0),
                    [&](const epoll_event& event) { return event.data.fd == listener_.get(); });
    if (calls) accept_waiting();
    if (last && !calls) return std::nullopt;
  }
}

void Reception::accept_waiting() {
  for (size_t count = 0; count < options_.max_waiting; ++count) {
    FileDescriptor connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const int error = connection.get() < 0 ? errno : 0;
    const bool too_many = error == EMFILE || error == ENFILE;
    if (error != 0 && !too_many) return;
    // accept4() asks for a descriptor first, even if nobody calls.
    if (too_many && !wait_for_events(listener_, POLLIN, Clock::now())) return;
    if (too_many && visitors_.empty()) check_descriptors(error, "a connection from another rank");
    if (too_many || visitors_.size() >= options_.max_waiting) make_room();
    if (too_many) return;
    const std::string address = peer_address(connection);
    watch(connection);
    visitors_.push_back({.connection = std::move(connection), .address = address});
  }
}

/// Closes the oldest connection that has not said hello, or else the oldest.
void Reception::make_room() {
  if (visitors_.empty()) return;
  auto last = std::find_if(visitors_.begin(), visitors_.end(),
                           [](const Visitor& visitor) { return visitor.challenged.empty(); });
  if (last == visitors_.end()) last = visitors_.begin();
  refuse(*last);
  visitors_.erase(last);
}

void Reception::refuse(const Visitor& visitor) {
  ++(visitor.challenged.empty() ? refused_ : unproven_);
  if (addresses_.size() > kAddressesNamed) return;
  if (std::find(addresses_.begin(), addresses_.end(), visitor.address) == addresses_.end()) {
    addresses_.push_back(visitor.address);
  }
}

/// Reads until `size` bytes are there, and no more: frames may follow. False if the connection closes before.
bool Reception::read_up_to(Visitor& visitor, size_t size) {
  std::array<char, 512> buffer;
  while (visitor.received.size() < size) {
    const size_t most = std::min(buffer.size(), size - visitor.received.size());
    const ssize_t got = recv(visitor.connection.get(), buffer.data(), most, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    visitor.received.append(buffer.data(), static_cast<size_t>(got));
  }
  return true;
}

Reception::Progress Reception::advance(Visitor& visitor) const {
  const auto waits_for = [&](size_t size) {
    const bool open = read_up_to(visitor, size);
    return open && visitor.received.size() < size;
  };
  if (visitor.challenged.empty()) {
    if (waits_for(sizeof(Hello))) return Progress::waiting;
    if (visitor.received.size() < sizeof(Hello) || !challenge(visitor)) return Progress::refused;
  }
  if (waits_for(sizeof(Proof))) return Progress::waiting;
  if (visitor.received.size() < sizeof(Proof)) return Progress::refused;
  const auto proof = parse_bytes<Proof>(visitor.received);
  if (proof.text_bytes > kMaxGreetingText) return Progress::refused;
  if (waits_for(sizeof(Proof) + proof.text_bytes)) return Progress::waiting;
  const std::string_view text = std::string_view(visitor.received).substr(sizeof(Proof));
  const bool proven = text.size() == proof.text_bytes &&
                      equal_digests(proof.proof, proof_of_caller(options_.key, visitor.challenged, text));
  return proven ? Progress::proven : Progress::refused;
}

/// Answers the hello; false if it is not one for this rank.
bool Reception::challenge(Visitor& visitor) const {
  const auto hello = parse_bytes<Hello>(visitor.received);
  const bool valid = hello.magic == kGreetingMagic && hello.purpose == options_.purpose &&
                     hello.called == options_.called && hello.size > 0 && hello.size <= kMaxGreetingRanks &&
                     hello.caller >= 0 && hello.caller < hello.size && hello.caller != hello.called;
  if (!valid) return false;
  Challenge challenge{.magic = kGreetingMagic, .nonce = make_nonce(), .proof = {}};
  visitor.challenged = visitor.received.substr(0, sizeof(Hello));
  visitor.challenged.append(challenge.nonce.data(), challenge.nonce.size());
  visitor.received.erase(0, sizeof(Hello));
  challenge.proof = proof_of_called(options_.key, visitor.challenged);
  // The buffer of a new connection has room.
  return send(visitor.connection.get(), &challenge, sizeof(challenge), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         sizeof(challenge);
}

/// nullopt if the connection was closed.
std::optional<Reception::Caller> Reception::welcome(Visitor visitor) {
  const ssize_t sent =
      send(visitor.connection.get(), &kWelcome, sizeof(kWelcome), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent != sizeof(kWelcome)) return std::nullopt;
  const auto hello = parse_bytes<Hello>(visitor.challenged);
  fcntl(visitor.connection.get(), F_SETFL, 0);
  return Caller{.rank = hello.caller,
                .size = hello.size,
                .text = visitor.received.substr(sizeof(Proof)),
                .connection = std::move(visitor.connection)};
}

std::string Reception::strangers() const {
  int64_t refused = refused_, unproven = unproven_;
  std::vector<std::string> addresses = addresses_;
  for (const Visitor& visitor : visitors_) {
    ++(visitor.challenged.empty() ? refused : unproven);
    if (std::find(addresses.begin(), addresses.end(), visitor.address) == addresses.end())
      addresses.push_back(visitor.address);
  }
  if (refused + unproven == 0) return "";
  const bool more = addresses.size() > kAddressesNamed;
  addresses.resize(std::min(addresses.size(), kAddressesNamed));
  std::vector<std::string> parts;
  if (refused > 0) parts.push_back(fmt::format("{} said nothing that a rank says", refused));
  if (unproven > 0) parts.push_back(fmt::format("{} did not know the job's secret", unproven));
  return fmt::format("Other connections to this port were refused, from {}{}: {}", fmt::join(addresses, ", "),
                     more ? " and others" : "", fmt::join(parts, ", "));
}

}  // namespace teratron
