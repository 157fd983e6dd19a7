#include "teratron/comm/rendezvous/rendezvous.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include <sys/socket.h>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/comm/ranks/flight_recorder.h"
#include "teratron/comm/ranks/tree.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kCallInterval{100};
constexpr char kFixMark = '|';                   // between a problem and how to fix it
constexpr std::chrono::seconds kReportTime{10};  // for all ranks to learn why the job does not start

/// Rank 0's answer to a rank that has joined: the nonce and the parent's text, or why there is no start.
struct Reply {
  enum class Kind : uint32_t { met = 1, inconsistent = 2, timed_out = 3 };
  Kind kind;
  uint32_t count;  // of parts
};

/// Each part follows its length.
std::string encode_reply(Reply::Kind kind, const std::vector<std::string>& parts) {
  const Reply reply{.kind = kind, .count = static_cast<uint32_t>(parts.size())};
  std::string bytes(reinterpret_cast<const char*>(&reply), sizeof(reply));
  for (const std::string& part : parts) {
    const auto size = static_cast<uint32_t>(part.size());
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(part);
  }
  return bytes;
}

/// nullopt if the connection closes, or at the deadline, or if it is not a reply.
std::optional<std::pair<Reply::Kind, std::vector<std::string>>> read_reply(const FileDescriptor& connection,
                                                                           SteadyTime deadline) {
  Reply reply{};
  if (!read_exactly(connection, &reply, sizeof(reply), deadline)) return std::nullopt;
  const bool met = reply.kind == Reply::Kind::met;
  const bool known = met || reply.kind == Reply::Kind::inconsistent || reply.kind == Reply::Kind::timed_out;
  if (!known || reply.count != (met ? 2 : 1)) return std::nullopt;
  std::vector<std::string> parts;
  for (uint32_t i = 0; i < reply.count; ++i) {
    uint32_t size = 0;
    if (!read_exactly(connection, &size, sizeof(size), deadline) || size > kMaxGreetingText)
      return std::nullopt;
    std::string& part = parts.emplace_back(size, '\0');
    if (!read_exactly(connection, part.data(), size, deadline)) return std::nullopt;
  }
  return std::pair(reply.kind, std::move(parts));
}

bool is_closed(const FileDescriptor& connection) {
  char byte = 0;
  const ssize_t got = recv(connection.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

/// Rank 0.
class RendezvousHost final : public Rendezvous {
 public:
  explicit RendezvousHost(RendezvousPoint point)
      : point_(std::move(point)),
        own_address_(own_address_towards(point_.address)),
        reception_(listener(), {.purpose = Greeting::Purpose::rendezvous, .key = point_.env.secret}) {}

  const std::string& own_address() const override { return own_address_; }

  Meeting meet(const std::string& text) override {
    if (is_start_refusal(text)) report_inconsistent(text.substr(1), std::nullopt);
    while (!complete()) {
      std::optional<Reception::Caller> caller = reception_.next(point_.deadline);
      if (!caller) report_missing();
      const std::string problem = problem_of(*caller);
      if (!problem.empty()) report_inconsistent(problem, std::move(*caller));
      joined_[caller->rank] = std::move(*caller);
    }
    Meeting meeting{.nonce = random_hex(kNonceDigits), .texts = {{0, text}}};
    for (const auto& [rank, caller] : joined_) meeting.texts[rank] = caller.text;
    for (const auto& [rank, caller] : joined_) {
      const std::string& parent = meeting.texts.at(tree_parent(rank));
      const std::string reply = encode_reply(Reply::Kind::met, {meeting.nonce, parent});
      write_exactly(caller.connection, reply.data(), reply.size(), point_.deadline + kReportTime);
    }
    return meeting;
  }

 private:
  FileDescriptor listener() const {
    const std::optional<int> inherited = point_.env.store_listen_fd;
    return inherited ? FileDescriptor(*inherited) : listen_on(point_.address, point_.env.master_port);
  }

  /// A rank that has joined may have died since.
  bool complete() {
    if (static_cast<int64_t>(joined_.size()) + 1 < point_.env.size) return false;
    return std::erase_if(joined_, [](const auto& item) { return is_closed(item.second.connection); }) == 0;
  }

  std::string problem_of(const Reception::Caller& caller) const {
    const int64_t size = point_.env.size;
    if (is_start_refusal(caller.text)) return printable(caller.text.substr(1), kMaxGreetingText);
    if (caller.size != size) {
      return fmt::format("rank {} was started as one of {} ranks, rank 0 as one of {}", caller.rank,
                         caller.size, size);
    }
    const auto before = joined_.find(caller.rank);
    const bool twice = before != joined_.end() && !is_closed(before->second.connection);
    return twice ? fmt::format("rank {} of {} was started twice", caller.rank, size) : "";
  }

  void send_all(const std::string& reply, SteadyTime deadline) const {
    for (const auto& [rank, caller] : joined_) {
      write_exactly(caller.connection, reply.data(), reply.size(), deadline);
    }
  }

  [[noreturn]] void report_missing() {
    std::vector<int64_t> missing;
    for (int64_t rank = 1; rank < point_.env.size; ++rank) {
      if (!joined_.contains(rank)) missing.push_back(rank);
    }
    std::string reason = point_.timed_out(point_.missing(missing));
    const std::string strangers = reception_.strangers();
    if (!strangers.empty()) reason += ". " + strangers;
    send_all(encode_reply(Reply::Kind::timed_out, {reason.substr(0, kMaxGreetingText)}),
             Clock::now() + kReportTime);
    throw Fault(reason);
  }

  /// Also to ranks that join within the next seconds.
  [[noreturn]] void report_inconsistent(const std::string& problem, std::optional<Reception::Caller> caller) {
    const std::string reply = encode_reply(Reply::Kind::inconsistent, {problem});
    const auto limit = Clock::now() + kReportTime;
    send_all(reply, limit);
    auto informed = static_cast<int64_t>(joined_.size());
    while (informed + 1 < point_.env.size) {
      if (!caller) caller = reception_.next(limit);
      if (!caller) break;
      write_exactly(caller->connection, reply.data(), reply.size(), limit);
      caller.reset();
      ++informed;
    }
    throw inconsistent_start(problem);
  }

  const RendezvousPoint point_;
  const std::string own_address_;
  Reception reception_;
  std::map<int64_t, Reception::Caller> joined_;  // by rank
};

/// Any other rank.
class RendezvousGuest final : public Rendezvous {
 public:
  explicit RendezvousGuest(RendezvousPoint point)
      : point_(std::move(point)), own_address_(own_address_towards(point_.address)) {
    call_host();
  }

  const std::string& own_address() const override { return own_address_; }

  Meeting meet(const std::string& text) override {
    while (!call_->prove(text, point_.deadline)) {
      if (Clock::now() >= point_.deadline) point_.fail_unanswered();
      call_host();
    }
    // Rank 0, which may have started later, reports which ranks are missing.
    auto reply = read_reply(call_->connection(), point_.deadline + kReportTime);
    if (!reply && Clock::now() >= point_.deadline) {
      point_.fail(fmt::format("rank {} did not hear from rank 0 at {} that all ranks have joined",
                              point_.env.rank, point_.endpoint()));
    }
    if (!reply) {
      throw Fault(fmt::format("rank 0 ended at {} before all ranks had joined", point_.endpoint()));
    }
    auto& [kind, parts] = *reply;
    if (kind == Reply::Kind::inconsistent) throw inconsistent_start(printable(parts[0], kMaxGreetingText));
    if (kind == Reply::Kind::timed_out) throw Fault(printable(parts[0], kMaxGreetingText));
    return {.nonce = parts[0], .texts = {{tree_parent(point_.env.rank), parts[1]}}};
  }

 private:
  void call_host() {
    bool listening = false;
    while (true) {
      FileDescriptor connection = connect_to(point_.address, point_.env.master_port, point_.deadline);
      listening = connection.get() >= 0;
      if (listening && greet(std::move(connection))) return;
      if (Clock::now() >= point_.deadline) break;
      std::this_thread::sleep_for(kCallInterval);
    }
    if (listening) point_.fail_unanswered();
    point_.fail(fmt::format("rank {} could not connect to {}: rank 0 is not there", point_.env.rank,
                            point_.endpoint()));
  }

  bool greet(FileDescriptor connection) {
    call_.emplace(
        std::move(connection),
        Greeting{
            .purpose = Greeting::Purpose::rendezvous, .caller = point_.env.rank, .size = point_.env.size},
        point_.env.secret);
    const Call::Answer answer = call_->greet(point_.deadline);
    if (answer != Call::Answer::other_secret) return answer == Call::Answer::greeted;
    throw config_error({.what = fmt::format("rank 0 at {} has another secret than rank {}", point_.endpoint(),
                                            point_.env.rank),
                        .where = "TERATRON_JOB_SECRET",
                        .fix = "Give all machines the same secret, or none"});
  }

  const RendezvousPoint point_;
  const std::string own_address_;
  std::optional<Call> call_;
};

}  // namespace

void RendezvousPoint::find_address() {
  while (true) {
    const std::vector<std::string> found = resolve(env.master_address);
    if (!found.empty()) {
      address = found[0];
      return;
    }
    if (Clock::now() >= deadline) fail(fmt::format("MASTER_ADDR '{}' does not resolve", env.master_address));
    std::this_thread::sleep_for(kCallInterval);
  }
}

std::string RendezvousPoint::timed_out(const std::string& what) const {
  const bool loopback = address.starts_with("127.") && env.master_address != address;
  return fmt::format("{} within {:g} s. Check MASTER_ADDR and MASTER_PORT, and that every rank was started{}",
                     what, std::chrono::duration<double>(timeout).count(),
                     loopback ? fmt::format("; this machine resolves {} to itself ({}), which other machines "
                                            "cannot reach",
                                            env.master_address, address)
                              : "");
}

void RendezvousPoint::fail_unanswered() const {
  fail(fmt::format("the program at {} did not answer rank {} as rank 0 would", endpoint(), env.rank));
}

std::string RendezvousPoint::missing(const std::vector<int64_t>& ranks) const {
  return fmt::format("{} of {} did not join at {}", describe_ranks(ranks), env.size, endpoint());
}

UserError inconsistent_start(const std::string& problem) {
  const size_t mark = problem.rfind(kFixMark);
  const char* const usual =
      "Start all machines with the same --nnodes and --nproc-per-node, each with a different --node-rank";
  return config_error({.what = problem.substr(0, mark),
                       .where = "ranks",
                       .fix = mark == std::string::npos ? usual : problem.substr(mark + 1)});
}

std::string start_refusal(const std::string& problem, const std::string& fix) {
  return fmt::format("!{}{}{}", problem, kFixMark, fix);
}

bool is_start_refusal(const std::string& text) {
  return text.starts_with('!');
}

std::unique_ptr<Rendezvous> join_rendezvous(const LaunchEnv& env, std::chrono::milliseconds timeout) {
  RendezvousPoint point{.env = env, .timeout = timeout};
  point.find_address();
  if (env.rank == 0) return std::make_unique<RendezvousHost>(std::move(point));
  return std::make_unique<RendezvousGuest>(std::move(point));
}

}  // namespace teratron
