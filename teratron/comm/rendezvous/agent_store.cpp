#include "teratron/comm/rendezvous/agent_store.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/sha256.h"
#include "teratron/base/strings.h"
#include "teratron/comm/ranks/tree.h"
#include "teratron/comm/transport/socket.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kRetryInterval{100};
constexpr Milliseconds kGracePeriod{3000};  // for a reply already in flight at the deadline

/// Silences TCPStore, which logs a stack trace for every failed attempt. Stays silent after an exception: a
/// detached attempt may still be running.
class SilenceStore {
 public:
  SilenceStore() { FLAGS_caffe2_log_level = c10::GLOG_FATAL; }
  ~SilenceStore() {
    if (std::uncaught_exceptions() == 0) FLAGS_caffe2_log_level = previous_;
  }
  SilenceStore(const SilenceStore&) = delete;
  SilenceStore& operator=(const SilenceStore&) = delete;

 private:
  const int previous_ = FLAGS_caffe2_log_level;
};

/// Copyable, for detached threads.
struct StoreClient {
  RendezvousPoint point;
  c10::intrusive_ptr<c10d::TCPStore> store = {};
  std::shared_ptr<std::atomic<int64_t>> request_count = std::make_shared<std::atomic<int64_t>>(0);

  /// Runs `work`; turns libtorch's exceptions into Faults.
  void guarded(const std::function<void()>& work) const {
    const SilenceStore silence;
    try {
      work();
    } catch (const c10::Error& error) {
      throw Fault(
          fmt::format("the rendezvous at {} failed: {}", point.endpoint(), error.what_without_backtrace()));
    }
  }

  /// On a detachable thread: TCPStore waits indefinitely for a reply.
  template <typename F>
  std::invoke_result_t<F> with_deadline(F work) const {
    std::packaged_task<std::invoke_result_t<F>()> task(std::move(work));
    auto result = task.get_future();
    std::thread(std::move(task)).detach();
    if (result.wait_until(point.deadline + kGracePeriod) != std::future_status::ready)
      point.fail_unanswered();
    return result.get();
  }

  void join() {
    while (connect_to(point.address, point.env.master_port, point.deadline).get() < 0) {
      if (Clock::now() >= point.deadline) {
        point.fail(fmt::format("rank {} could not connect to {}: rank 0 is not there", point.env.rank,
                               point.endpoint()));
      }
      std::this_thread::sleep_for(kRetryInterval);
    }
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(point.env.master_port);
    options.waitWorkers = false;
    options.timeout = point.timeout;
    try {
      store = with_deadline([address = point.address, options] {
        return c10::make_intrusive<c10d::TCPStore>(address, options);
      });
    } catch (const c10::Error&) {
      point.fail_unanswered();
    }
  }

  Sha256Digest proof_of(const std::string& key, const std::string& text) const {
    return hmac_sha256(point.env.secret, fmt::format("teratron {} {}", key, text));
  }

  /// A value as it is stored: after its HMAC.
  std::string sealed(const std::string& key, const std::string& text) const {
    const Sha256Digest proof = proof_of(key, text);
    return std::string(proof.begin(), proof.end()) + text;
  }

  std::string opened(const std::string& key, const std::string& value) const {
    Sha256Digest proof{};
    const bool has_proof =
        value.size() >= proof.size() && value.size() - proof.size() <= 2 * kMaxGreetingText;
    if (has_proof) {
      std::copy_n(value.begin(), proof.size(), proof.begin());
      const std::string text = value.substr(proof.size());
      if (equal_digests(proof, proof_of(key, text))) return text;
    }
    throw Fault(fmt::format("a value in the store at {} is not from a rank with this job's secret",
                            point.endpoint()));
  }

  bool has(const std::string& key) const {
    ++requests();
    return store->check({key});
  }
  std::string get(const std::string& key) const {
    ++requests();
    return opened(key, store->get_to_str(key));
  }
  void put(const std::string& key, const std::string& text) const {
    ++requests();
    static_cast<c10d::Store&>(*store).set(key, sealed(key, text));
  }
  /// Whether the key had no value.
  bool put_first(const std::string& key, const std::string& text) const {
    ++requests();
    const std::string value = sealed(key, text);
    const std::vector<uint8_t> mine(value.begin(), value.end());
    return store->compareSet(key, {}, mine) == mine;
  }
  int64_t add(const std::string& key, int64_t count) const {
    ++requests();
    return store->add(key, count);
  }

  std::atomic<int64_t>& requests() const { return *request_count; }
};

/// One start of the job in the store, which may outlive several: torchrun's agent keeps it when it starts its
/// ranks again. Restart counts do not identify a start, as each machine counts its own: rank 0 makes a nonce.
/// Its keys are
///
///   teratron/job            nonce, number of ranks and restart count of rank 0
///   teratron/NONCE/RANK     restart count, some random digits and text of that rank
///   teratron/NONCE/joined   number of ranks
///   teratron/NONCE/outcome  "met", or why there is no start
class StoreMeeting {
 public:
  StoreMeeting(const StoreClient& client, std::string text)
      : client_(client),
        env_(client.point.env),
        text_(std::move(text)),
        value_(fmt::format("{} {}\n{}", env_.attempt, random_hex(kNonceDigits), text_)) {}

  /// nullopt if there is no outcome by the deadline.
  std::optional<Meeting> meet() {
    const bool met = env_.rank == 0 ? gather_all() : join_and_wait();
    if (!met) return std::nullopt;
    meeting_.nonce = nonce_;
    meeting_.store_requests = client_.requests();
    return meeting_;
  }

  std::vector<int64_t> missing() const {
    if (!client_.has(kJob)) return {0};
    std::vector<int64_t> ranks;
    for (int64_t rank = 1; rank < env_.size; ++rank) {
      if (!client_.has(key(std::to_string(rank)))) ranks.push_back(rank);
    }
    return ranks;
  }

  /// Ends the start for all ranks; throws what is reported.
  [[noreturn]] void report(char kind, const std::string& text) const {
    client_.put_first(key("outcome"), kind + text);
    fail(client_.get(key("outcome")));
  }

 private:
  static constexpr const char* kJob = "teratron/job";
  /// With which a rank waits for rank 0 to begin another start.
  static constexpr std::chrono::seconds kRestartPatience{10};
  static constexpr char kMet = 'm', kInconsistent = 'i', kTimedOut = 't';

  std::string key(const std::string& name) const { return fmt::format("teratron/{}/{}", nonce_, name); }

  [[noreturn]] static void fail(const std::string& outcome) {
    const std::string text = printable(outcome.substr(1), kMaxGreetingText);
    if (outcome[0] == kInconsistent) throw inconsistent_start(text);
    throw Fault(text);
  }

  bool passed() const { return Clock::now() >= client_.point.deadline; }

  bool has_outcome() const {
    if (!client_.has(key("outcome"))) return false;
    const std::string outcome = client_.get(key("outcome"));
    if (outcome.empty() || outcome[0] != kMet) fail(outcome.empty() ? " " : outcome);
    return true;
  }

  /// Rank 0. One request at a time, however many ranks there are.
  bool gather_all() {
    nonce_ = random_hex(kNonceDigits);
    client_.put(key("0"), value_);  // before others can wait for it
    client_.put(kJob, fmt::format("{} {} {}", nonce_, env_.size, env_.attempt));
    if (is_start_refusal(text_)) report(kInconsistent, text_.substr(1));
    while (client_.add(key("joined"), 0) + 1 < env_.size) {
      if (passed()) {
        report(kTimedOut, client_.point.timed_out(client_.point.missing(missing())));
      }
      has_outcome();
      std::this_thread::sleep_for(kRetryInterval);
    }
    meeting_.texts[0] = text_;
    for (int64_t rank = 1; rank < env_.size; ++rank) meeting_.texts[rank] = text_of(rank);
    if (!client_.put_first(key("outcome"), std::string(1, kMet))) has_outcome();
    return true;
  }

  /// The second line of a rank's value.
  std::string text_of(int64_t rank) const {
    const std::string value = client_.get(key(std::to_string(rank)));
    return value.substr(value.find('\n') + 1);
  }

  /// A start that had an outcome before this rank came is over. What ended it is reported only if rank 0
  /// begins no other soon.
  bool join_and_wait() {
    if (client_.has(kJob)) {
      nonce_ = job_words(client_.get(kJob))[0];
      is_over_ = client_.has(key("outcome"));
    }
    const auto pause = [this] {
      std::this_thread::sleep_until(std::min(Clock::now() + wait_, client_.point.deadline));
    };
    const Clock::time_point now = Clock::now();
    const auto no_other_start =
        now + std::min<Clock::duration>(kRestartPatience, (client_.point.deadline - now) / 2);
    for (; !passed(); pause()) {
      if (!nonce_.empty() || client_.has(kJob)) join(client_.get(kJob));
      if (is_over_ && Clock::now() > no_other_start) report_refused_start();
      if (!joined_ || !has_outcome()) continue;
      const int64_t parent = tree_parent(env_.rank);
      meeting_.texts[parent] = text_of(parent);
      return true;
    }
    if (is_over_) fail_after_earlier_start();
    return false;
  }

  static std::vector<std::string> job_words(const std::string& job) {
    std::vector<std::string> words = split(job);
    if (words.size() == 3) return words;
    throw Fault(fmt::format("'{}' does not describe the start of a job", printable(job)));
  }

  /// Joins the start that `job` describes, unless it has or that one is over.
  void join(const std::string& job) {
    const std::vector<std::string> words = job_words(job);
    if (words[0] == nonce_ && (joined_ || is_over_)) return;
    nonce_ = words[0];
    is_taken_ = false;
    const std::string here = std::to_string(env_.rank);
    const bool fits = words[1] == std::to_string(env_.size);
    const bool is_first = client_.put_first(key(here), value_);
    joined_ = is_first && fits;
    if (joined_ && is_start_refusal(text_)) report(kInconsistent, text_.substr(1));
    if (joined_) client_.add(key("joined"), 1);
    is_over_ = !joined_ && is_earlier(is_first);
    if (joined_ || is_over_) return;
    if (!fits) {
      report(kInconsistent, fmt::format("rank {} was started as one of {} ranks, rank 0 as one of {}", here,
                                        env_.size, printable(words[1])));
    }
    // By a second process with this rank, or by an earlier start that was killed before it had an outcome.
    is_over_ = is_taken_ = client_.get(key(here)).starts_with(env_.attempt + " ");
  }

  /// Rank 0 has not begun another start: reports what ended the one that this rank found.
  void report_refused_start() {
    const std::string outcome = client_.has(key("outcome")) ? client_.get(key("outcome")) : "";
    if (!outcome.empty() && outcome[0] == kInconsistent) fail(outcome);
    if (!is_taken_) return;
    const std::string twice = fmt::format("rank {} of {} was started twice", env_.rank, env_.size);
    if (!outcome.empty()) fail(kInconsistent + twice);
    report(kInconsistent, twice);
  }

  [[noreturn]] void fail_after_earlier_start() const {
    const std::string outcome = client_.get(key("outcome"));
    const bool met = outcome.empty() || outcome[0] == kMet;
    client_.point.fail(fmt::format("rank {} found a start that was over ({}) and rank 0 began no other",
                                   env_.rank,
                                   met ? "all had met" : printable(outcome.substr(1), kMaxGreetingText)));
  }

  /// An earlier start, until rank 0 starts again: it has this rank or, if it had another number of ranks, has
  /// met.
  bool is_earlier(bool is_first) const {
    return client_.has(key("outcome")) && (!is_first || client_.get(key("outcome"))[0] == kMet);
  }

  const StoreClient& client_;
  const LaunchEnv& env_;
  const std::string text_;
  /// No other start of this rank has the same, so that put_first() tells whether it is from this one.
  const std::string value_;
  /// All ranks wait for the outcome: the store answers some ten thousand requests a second.
  const Milliseconds wait_ = std::max(kRetryInterval, Milliseconds(env_.size / 5));
  std::string nonce_;
  bool joined_ = false, is_over_ = false;
  bool is_taken_ = false;  // another process with this restart count has this rank's place
  Meeting meeting_;
};

class AgentStore final : public Rendezvous {
 public:
  explicit AgentStore(RendezvousPoint point) : client_{.point = std::move(point)} {
    client_.guarded([&] { client_.join(); });
    own_address_ = own_address_towards(client_.point.address);
  }

  const std::string& own_address() const override { return own_address_; }

  Meeting meet(const std::string& text) override {
    std::optional<Meeting> meeting;
    client_.guarded([&] {
      meeting = client_.with_deadline([client = client_, text] { return StoreMeeting(client, text).meet(); });
    });
    if (meeting) return *std::move(meeting);
    const RendezvousPoint& point = client_.point;
    point.fail(fmt::format("rank {} did not hear from rank 0 at {} that all ranks have joined",
                           point.env.rank, point.endpoint()));
  }

 private:
  StoreClient client_;
  std::string own_address_;
};

}  // namespace

std::unique_ptr<Rendezvous> join_agent_store(const LaunchEnv& env, std::chrono::milliseconds timeout) {
  RendezvousPoint point{.env = env, .timeout = timeout};
  point.find_address();
  return std::make_unique<AgentStore>(std::move(point));
}

}  // namespace teratron
