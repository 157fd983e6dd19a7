#include "teratron/comm/meeting_point.h"

#include <thread>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "teratron/base/error.h"
#include "teratron/comm/call.h"
#include "teratron/comm/socket_wire.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kPause{100};

double in_seconds(Milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

struct MeetingPoint::State {
  Launch launch;
  Milliseconds timeout;
  Clock::time_point deadline = Clock::now() + timeout;
  std::string address;  // of the store, numeric
  std::string own_address;
  c10::intrusive_ptr<c10d::TCPStore> store;

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

  void join() {
    while (!can_connect(address, launch.master_port)) {
      if (Clock::now() >= deadline) {
        fail(fmt::format("rank {} found nobody at {}: rank 0 did not come", launch.rank, place()));
      }
      std::this_thread::sleep_for(kPause);
    }
    store = c10::make_intrusive<c10d::TCPStore>(address, options());
  }

  void fail_without(const std::vector<std::string>& keys) const {
    std::vector<int64_t> missing;
    for (size_t r = 0; r < keys.size(); ++r) {
      if (!store->check({keys[r]})) missing.push_back(static_cast<int64_t>(r));
    }
    if (missing.empty()) return;
    fail(fmt::format("{} of {} did not come to {}", ranks_in_words(missing), keys.size(), place()));
  }

  std::string key(int64_t rank) const { return fmt::format("teratron/{}/{}", launch.attempt, rank); }
};

MeetingPoint::MeetingPoint(const Launch& launch, Milliseconds timeout)
    : state_(std::make_unique<State>(State{.launch = launch, .timeout = timeout})) {
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
  c10d::TCPStore& store = *state_->store;
  std::vector<std::string> keys, texts;
  for (int64_t r = 0; r < state_->launch.size; ++r) keys.push_back(state_->key(r));
  try {
    static_cast<c10d::Store&>(store).set(keys[state_->launch.rank], own);
    while (!store.check(keys)) {
      if (Clock::now() >= state_->deadline) state_->fail_without(keys);
      std::this_thread::sleep_for(kPause);
    }
    for (const std::string& key : keys) texts.push_back(store.get_to_str(key));
  } catch (const c10::Error& error) {
    throw Fault(
        fmt::format("the rendezvous at {} failed: {}", state_->place(), error.what_without_backtrace()));
  }
  return texts;
}

}  // namespace teratron
