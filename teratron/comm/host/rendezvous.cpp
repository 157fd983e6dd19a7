#include "teratron/comm/host/rendezvous.h"

#include <exception>
#include <functional>
#include <future>
#include <thread>
#include <type_traits>
#include <utility>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "teratron/base/error.h"
#include "teratron/comm/host/flight_recorder.h"
#include "teratron/comm/host/socket_transport.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kRetryInterval{100};
constexpr std::chrono::seconds kReportTime{10};  // for all ranks to read why the job does not start
constexpr Milliseconds kGracePeriod{1000};       // for a reply already in flight at the deadline

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

}  // namespace

/// Copyable, for detached threads.
struct Rendezvous::State {
  LaunchEnv env;
  Milliseconds timeout;
  Clock::time_point deadline = Clock::now() + timeout;
  std::string address;  // of the store, numeric
  std::string own_address;
  c10::intrusive_ptr<c10d::TCPStore> store;

  std::string endpoint() const { return fmt::format("{}:{}", env.master_address, env.master_port); }

  [[noreturn]] void fail(const std::string& what) const {
    const bool loopback = address.starts_with("127.") && env.master_address != address;
    throw Fault(
        fmt::format("{} within {:g} s. Check MASTER_ADDR and MASTER_PORT, and that every rank was started{}",
                    what, std::chrono::duration<double>(timeout).count(),
                    loopback ? fmt::format("; this machine resolves {} to itself ({}), which other machines "
                                           "cannot reach",
                                           env.master_address, address)
                             : ""));
  }

  void find_address() {
    while (true) {
      const std::vector<std::string> found = resolve(env.master_address);
      if (!found.empty()) {
        address = found[0];
        return;
      }
      if (Clock::now() >= deadline)
        fail(fmt::format("MASTER_ADDR '{}' does not resolve", env.master_address));
      std::this_thread::sleep_for(kRetryInterval);
    }
  }

  c10d::TCPStoreOptions options() const {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(env.master_port);
    options.waitWorkers = false;
    options.timeout = timeout;
    return options;
  }

  void serve() {
    FileDescriptor listener =
        env.store_listen_fd ? FileDescriptor(*env.store_listen_fd) : listen_on(address, env.master_port);
    c10d::TCPStoreOptions server = options();
    server.port = static_cast<uint16_t>(port_of(listener));
    server.isServer = true;
    server.masterListenFd = listener.release();
    store = c10::make_intrusive<c10d::TCPStore>(address, server);
  }

  /// Runs `work`; turns libtorch's exceptions into Faults.
  void guarded(const std::function<void()>& work) const {
    const SilenceStore silence;
    try {
      work();
    } catch (const c10::Error& error) {
      throw Fault(fmt::format("the rendezvous at {} failed: {}", endpoint(), error.what_without_backtrace()));
    }
  }

  /// On a detachable thread: TCPStore waits indefinitely for a reply.
  template <typename F>
  std::invoke_result_t<F> with_deadline(F work) const {
    std::packaged_task<std::invoke_result_t<F>()> task(std::move(work));
    auto result = task.get_future();
    std::thread(std::move(task)).detach();
    if (result.wait_until(deadline + kGracePeriod) != std::future_status::ready) fail_unanswered();
    return result.get();
  }

  void join() {
    while (connect_to(address, env.master_port).get() < 0) {
      if (Clock::now() >= deadline) {
        fail(fmt::format("rank {} could not connect to {}: rank 0 is not there", env.rank, endpoint()));
      }
      std::this_thread::sleep_for(kRetryInterval);
    }
    try {
      store = with_deadline([address = address, options = options()] {
        return c10::make_intrusive<c10d::TCPStore>(address, options);
      });
    } catch (const c10::Error&) {
      fail_unanswered();
    }
  }

  [[noreturn]] void fail_unanswered() const {
    fail(fmt::format("the program at {} did not answer rank {} as rank 0 would", endpoint(), env.rank));
  }

  std::string key(const std::string& name) const { return fmt::format("teratron/{}/{}", env.attempt, name); }
  bool has(const std::string& name) const { return store->check({key(name)}); }
  std::string get(const std::string& name) const { return store->get_to_str(key(name)); }
  void put(const std::string& name, const std::string& text) const {
    static_cast<c10d::Store&>(*store).set(key(name), text);
  }

  /// Throws if this or another rank has found the ranks started inconsistently.
  void check_start(const std::string& own_problem) const {
    if (!own_problem.empty()) put("problem", own_problem);
    if (!has("problem")) return;
    const std::string problem = get("problem");
    // Rank 0 hosts the store and must exit last.
    const auto limit = Clock::now() + kReportTime;
    int64_t readers = store->add(key("told"), 1);
    while (env.rank == 0 && readers < env.size && Clock::now() < limit) {
      std::this_thread::sleep_for(kRetryInterval);
      readers = store->add(key("told"), 0);
    }
    throw config_error({.what = problem,
                        .where = "ranks",
                        .fix = "Start all machines with the same --nnodes and --nproc-per-node, each with a "
                               "different --node-rank"});
  }

  void check_size() const {
    const std::string here = std::to_string(env.size), first = get("size");
    check_start(here == first ? ""
                              : fmt::format("rank {} was started as one of {} ranks, rank 0 as one of {}",
                                            env.rank, here, first));
  }

  void set_own(const std::string& text) const {
    const std::vector<uint8_t> mine(text.begin(), text.end());
    const bool unique = store->compareSet(key(std::to_string(env.rank)), {}, mine) == mine;
    check_start(unique ? "" : fmt::format("rank {} of {} was started twice", env.rank, env.size));
  }

  std::vector<std::string> keys() const {
    std::vector<std::string> all;
    for (int64_t rank = 0; rank < env.size; ++rank) all.push_back(key(std::to_string(rank)));
    return all;
  }

  std::vector<int64_t> missing() const {
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; rank < env.size; ++rank) {
      if (!has(std::to_string(rank))) ranks.push_back(rank);
    }
    return ranks;
  }

  bool wait_for(const std::function<bool()>& done) const {
    while (!done()) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(kRetryInterval);
    }
    return true;
  }

  /// Empty if not all ranks have joined by the deadline.
  std::vector<std::string> all_gather(const std::string& text) const {
    if (env.rank == 0) put("size", std::to_string(env.size));
    if (!wait_for([&] { return has("size"); })) return {};
    check_size();
    set_own(text);
    const auto all_joined = [&, all = keys()] {
      check_start("");
      return store->check(all);
    };
    if (!wait_for(all_joined)) return {};
    std::vector<std::string> texts;
    for (const std::string& one : keys()) texts.push_back(store->get_to_str(one));
    return texts;
  }

  void fail_if_missing() const {
    const auto missing = with_deadline([state = *this] { return state.missing(); });
    if (missing.empty()) return;
    fail(fmt::format("{} of {} did not join at {}", describe_ranks(missing), env.size, endpoint()));
  }
};

Rendezvous::Rendezvous(const LaunchEnv& env, Milliseconds timeout)
    : state_(std::make_unique<State>(State{.env = env, .timeout = timeout})) {
  state_->guarded([&] {
    state_->find_address();
    env.rank == 0 && !env.agent_store ? state_->serve() : state_->join();
  });
  state_->own_address = own_address_towards(state_->address);
}

Rendezvous::~Rendezvous() = default;

const std::string& Rendezvous::own_address() const {
  return state_->own_address;
}

std::vector<std::string> Rendezvous::all_gather(const std::string& text) {
  std::vector<std::string> texts;
  state_->guarded([&] {
    while (texts.empty()) {
      texts = state_->with_deadline([state = *state_, text] { return state.all_gather(text); });
      if (texts.empty()) state_->fail_if_missing();
    }
  });
  return texts;
}

}  // namespace teratron
