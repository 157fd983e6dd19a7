#include "teratron/comm/host/store.h"

#include <exception>
#include <functional>
#include <future>
#include <thread>
#include <type_traits>
#include <utility>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "teratron/base/error.h"
#include "teratron/comm/host/call.h"
#include "teratron/comm/host/socket_transport.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kPause{100};
constexpr std::chrono::seconds kTimeToTell{10};  // that all ranks get to read why the job does not start
constexpr Milliseconds kPatience{1000};          // with an answer that was on its way when the time was over

/// The store lists its stack at every attempt that fails; what is wrong is said here, once. After a failure it
/// stays quiet: an attempt may have been left behind.
class QuietStore {
 public:
  QuietStore() { FLAGS_caffe2_log_level = c10::GLOG_FATAL; }
  ~QuietStore() {
    if (std::uncaught_exceptions() == 0) FLAGS_caffe2_log_level = former_;
  }
  QuietStore(const QuietStore&) = delete;
  QuietStore& operator=(const QuietStore&) = delete;

 private:
  const int former_ = FLAGS_caffe2_log_level;
};

double in_seconds(Milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

using Store = c10::intrusive_ptr<c10d::TCPStore>;

/// What the ranks leave in the store, as one of them sees it.
struct Roll {
  Store store;
  Launch launch;
  Clock::time_point deadline;

  std::string key(const std::string& name) const {
    return fmt::format("teratron/{}/{}", launch.attempt, name);
  }
  bool has(const std::string& name) const { return store->check({key(name)}); }
  std::string get(const std::string& name) const { return store->get_to_str(key(name)); }
  void put(const std::string& name, const std::string& text) const {
    static_cast<c10d::Store&>(*store).set(key(name), text);
  }

  /// Throws what this rank, or another one, finds wrong with how they were started.
  void check_start(const std::string& own_problem) const {
    if (!own_problem.empty()) put("problem", own_problem);
    if (!has("problem")) return;
    const std::string problem = get("problem");
    // The store ends with rank 0, which therefore leaves last.
    const auto patience = Clock::now() + kTimeToTell;
    int64_t told = store->add(key("told"), 1);
    while (launch.rank == 0 && told < launch.size && Clock::now() < patience) {
      std::this_thread::sleep_for(kPause);
      told = store->add(key("told"), 0);
    }
    throw config_error({.what = problem,
                        .where = "ranks",
                        .fix = "Start all machines with the same --nnodes and --nproc-per-node, each with a "
                               "--node-rank of its own"});
  }

  void check_size() const {
    const std::string here = std::to_string(launch.size), first = get("size");
    check_start(here == first ? ""
                              : fmt::format("rank {} was started as one of {} ranks, rank 0 as one of {}",
                                            launch.rank, here, first));
  }

  void enter(const std::string& own) const {
    const std::vector<uint8_t> mine(own.begin(), own.end());
    const bool alone = store->compareSet(key(std::to_string(launch.rank)), {}, mine) == mine;
    check_start(alone ? "" : fmt::format("rank {} of {} was started twice", launch.rank, launch.size));
  }

  std::vector<std::string> keys() const {
    std::vector<std::string> all;
    for (int64_t rank = 0; rank < launch.size; ++rank) all.push_back(key(std::to_string(rank)));
    return all;
  }

  std::vector<int64_t> missing() const {
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; rank < launch.size; ++rank) {
      if (!has(std::to_string(rank))) ranks.push_back(rank);
    }
    return ranks;
  }

  bool wait_for(const std::function<bool()>& done) const {
    while (!done()) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(kPause);
    }
    return true;
  }

  /// Leaves this rank's text and takes those of all ranks; nothing if not all came in time.
  std::vector<std::string> swap(const std::string& own) const {
    if (launch.rank == 0) put("size", std::to_string(launch.size));
    if (!wait_for([&] { return has("size"); })) return {};
    check_size();
    enter(own);
    const auto all_came = [&, all = keys()] {
      check_start("");
      return store->check(all);
    };
    if (!wait_for(all_came)) return {};
    std::vector<std::string> texts;
    for (const std::string& one : keys()) texts.push_back(store->get_to_str(one));
    return texts;
  }
};

}  // namespace

struct MeetingPoint::State {
  Launch launch;
  Milliseconds timeout;
  Clock::time_point deadline = Clock::now() + timeout;
  std::string address;  // of the store, numeric
  std::string own_address;
  Store store;

  std::string place() const { return fmt::format("{}:{}", launch.master_address, launch.master_port); }

  [[noreturn]] void fail(const std::string& what) const {
    const bool loopback = address.starts_with("127.") && launch.master_address != address;
    throw Fault(
        fmt::format("{} within {:g} s. Check MASTER_ADDR and MASTER_PORT, and that every rank was started{}",
                    what, in_seconds(timeout),
                    loopback ? fmt::format("; this machine takes {} for itself ({}), which no other machine "
                                           "can reach",
                                           launch.master_address, address)
                             : ""));
  }

  void find_address() {
    while (true) {
      const std::vector<std::string> found = resolve(launch.master_address);
      if (!found.empty()) {
        address = found[0];
        return;
      }
      if (Clock::now() >= deadline)
        fail(fmt::format("MASTER_ADDR '{}' was not found", launch.master_address));
      std::this_thread::sleep_for(kPause);
    }
  }

  c10d::TCPStoreOptions options() const {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(launch.master_port);
    options.waitWorkers = false;
    options.timeout = timeout;
    return options;
  }

  void serve() {
    Descriptor listener =
        launch.store_listener ? Descriptor(*launch.store_listener) : listen_on(address, launch.master_port);
    c10d::TCPStoreOptions server = options();
    server.port = static_cast<uint16_t>(port_of(listener));
    server.isServer = true;
    server.masterListenFd = listener.release();
    store = c10::make_intrusive<c10d::TCPStore>(address, server);
  }

  /// On a thread that can be left behind: the store waits for an answer for ever.
  template <typename F>
  std::invoke_result_t<F> in_time(F work) const {
    std::packaged_task<std::invoke_result_t<F>()> task(std::move(work));
    auto result = task.get_future();
    std::thread(std::move(task)).detach();
    if (result.wait_until(deadline + kPatience) != std::future_status::ready) fail_unanswered();
    return result.get();
  }

  void join() {
    while (!can_connect(address, launch.master_port)) {
      if (Clock::now() >= deadline) {
        fail(fmt::format("rank {} found nobody at {}: rank 0 did not come", launch.rank, place()));
      }
      std::this_thread::sleep_for(kPause);
    }
    try {
      store = in_time([address = address, options = options()] {
        return c10::make_intrusive<c10d::TCPStore>(address, options);
      });
    } catch (const c10::Error&) {
      fail_unanswered();
    }
  }

  [[noreturn]] void fail_unanswered() const {
    fail(fmt::format("whoever listens at {} did not answer rank {} as rank 0 would", place(), launch.rank));
  }

  Roll roll() const { return {store, launch, deadline}; }

  void fail_without_all() const {
    const auto missing = in_time([roll = roll()] { return roll.missing(); });
    if (missing.empty()) return;
    fail(fmt::format("{} of {} did not come to {}", ranks_in_words(missing), launch.size, place()));
  }
};

MeetingPoint::MeetingPoint(const Launch& launch, Milliseconds timeout)
    : state_(std::make_unique<State>(State{.launch = launch, .timeout = timeout})) {
  const QuietStore quiet;
  state_->find_address();
  const bool serves = launch.rank == 0 && !launch.store_runs;
  try {
    if (serves) {
      state_->serve();
    } else {
      state_->join();
    }
  } catch (const c10::Error& error) {
    throw Fault(
        fmt::format("the rendezvous at {} failed: {}", state_->place(), error.what_without_backtrace()));
  }
  state_->own_address = own_address_towards(state_->address);
}

MeetingPoint::~MeetingPoint() = default;

const std::string& MeetingPoint::own_address() const {
  return state_->own_address;
}

std::vector<std::string> MeetingPoint::exchange(const std::string& own) {
  const QuietStore quiet;
  try {
    std::vector<std::string> texts;
    while (texts.empty()) {
      texts = state_->in_time([roll = state_->roll(), own] { return roll.swap(own); });
      if (texts.empty()) state_->fail_without_all();
    }
    return texts;
  } catch (const c10::Error& error) {
    throw Fault(
        fmt::format("the rendezvous at {} failed: {}", state_->place(), error.what_without_backtrace()));
  }
}

}  // namespace teratron
