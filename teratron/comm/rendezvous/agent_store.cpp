#include "teratron/comm/rendezvous/agent_store.h"

#include <exception>
#include <functional>
#include <future>
#include <thread>
#include <type_traits>
#include <utility>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "teratron/base/error.h"
#include "teratron/base/sha256.h"
#include "teratron/comm/host/socket_transport.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kRetryInterval{100};
constexpr Milliseconds kGracePeriod{1000};  // for a reply already in flight at the deadline

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
    while (connect_to(point.address, point.env.master_port).get() < 0) {
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

  std::string key(const std::string& name) const {
    return fmt::format("teratron/{}/{}", point.env.attempt, name);
  }
  bool has(const std::string& name) const { return store->check({key(name)}); }

  /// The value as it is stored: after its HMAC.
  std::string sealed(const std::string& name, const std::string& text) const {
    const Sha256Digest proof = hmac_sha256(point.env.secret, fmt::format("teratron {} {}", key(name), text));
    return std::string(proof.begin(), proof.end()) + text;
  }

  std::string get(const std::string& name) const {
    const std::string value = store->get_to_str(key(name));
    const size_t proof_bytes = sizeof(Sha256Digest);
    const std::string text = value.size() < proof_bytes ? "" : value.substr(proof_bytes);
    if (text.size() <= kMaxGreetingText && value == sealed(name, text)) return text;
    throw Fault(fmt::format("a value in the store at {} is not from a rank with this job's secret",
                            point.endpoint()));
  }

  void put(const std::string& name, const std::string& text) const {
    static_cast<c10d::Store&>(*store).set(key(name), sealed(name, text));
  }

  /// Throws if this or another rank has found the ranks started inconsistently.
  void check_start(const std::string& own_problem) const {
    if (!own_problem.empty()) put("problem", own_problem);
    if (has("problem")) throw inconsistent_start(printable(get("problem"), kMaxGreetingText));
  }

  void check_size() const {
    const std::string here = std::to_string(point.env.size), first = get("size");
    check_start(here == first ? ""
                              : fmt::format("rank {} was started as one of {} ranks, rank 0 as one of {}",
                                            point.env.rank, here, printable(first)));
  }

  void set_own(const std::string& text) const {
    const std::string name = std::to_string(point.env.rank), value = sealed(name, text);
    const std::vector<uint8_t> mine(value.begin(), value.end());
    const bool unique = store->compareSet(key(name), {}, mine) == mine;
    check_start(unique ? "" : fmt::format("rank {} of {} was started twice", name, point.env.size));
  }

  std::vector<int64_t> missing() const {
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; rank < point.env.size; ++rank) {
      if (!has(std::to_string(rank))) ranks.push_back(rank);
    }
    return ranks;
  }

  bool wait_for(const std::function<bool()>& done) const {
    while (!done()) {
      if (Clock::now() >= point.deadline) return false;
      std::this_thread::sleep_for(kRetryInterval);
    }
    return true;
  }

  /// Empty if not all ranks have joined by the deadline.
  std::vector<std::string> all_gather(const std::string& text) const {
    if (point.env.rank == 0) put("size", std::to_string(point.env.size));
    if (!wait_for([&] { return has("size"); })) return {};
    check_size();
    set_own(text);
    std::vector<std::string> names, keys;
    for (int64_t rank = 0; rank < point.env.size; ++rank) {
      names.push_back(std::to_string(rank));
      keys.push_back(key(names.back()));
    }
    const auto all_joined = [&] {
      check_start("");
      return store->check(keys);
    };
    if (!wait_for(all_joined)) return {};
    std::vector<std::string> texts;
    for (const std::string& name : names) texts.push_back(get(name));
    return texts;
  }

  void fail_if_missing() const {
    const auto ranks = with_deadline([client = *this] { return client.missing(); });
    if (!ranks.empty()) point.fail(point.missing(ranks));
  }
};

class AgentStore final : public Rendezvous {
 public:
  explicit AgentStore(RendezvousPoint point) : client_{std::move(point)} {
    client_.guarded([&] { client_.join(); });
    own_address_ = own_address_towards(client_.point.address);
  }

  const std::string& own_address() const override { return own_address_; }

  std::vector<std::string> all_gather(const std::string& text) override {
    std::vector<std::string> texts;
    client_.guarded([&] {
      while (texts.empty()) {
        texts = client_.with_deadline([client = client_, text] { return client.all_gather(text); });
        if (texts.empty()) client_.fail_if_missing();
      }
    });
    return texts;
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
