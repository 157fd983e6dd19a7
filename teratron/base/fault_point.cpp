#include "teratron/base/fault_point.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/strings.h"

namespace teratron {

namespace fault_detail {
// lint: allow(global-state): a single relaxed load on the fast path
std::atomic<bool> armed = false;
}  // namespace fault_detail

namespace {

enum class Action : uint8_t { kill, abort, stop, raise, error, delay, bitflip };

struct ArmedFault {
  std::string point;
  int64_t rank = -1, step = -1, hit = -1, times = -1;
  Action action = Action::kill;
  int64_t value = 0;
  int64_t hits = 0;
};

struct Registry {
  std::mutex mutex;
  std::vector<ArmedFault> faults;
  bool recording = false;
  std::vector<std::string> recorded;
};

// Faults may fire in any thread at any depth, so the registry is global.
Registry& registry() {
  static Registry instance;  // lint: allow(global-state): see above
  return instance;
}

struct Context {
  int64_t rank = 0;
  int64_t step = 0;
};

Context& context() {
  thread_local Context instance;  // lint: allow(global-state): points have no context argument
  return instance;
}

UserError bad_specification(std::string_view text, const std::string& what) {
  return config_error({.what = fmt::format("'{}': {}", printable(text), what),
                       .where = "TERATRON_FAULT",
                       .fix = "Write point[@rank=N,step=N,hit=N,times=N]:action[=value]"});
}

int64_t parse_number(std::string_view specification, std::string_view digits) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value < 0) {
    throw bad_specification(specification,
                            fmt::format("'{}' is not a non-negative integer", printable(digits)));
  }
  return value;
}

template <typename T>
struct Named {
  std::string_view name;
  T value;
};
constexpr Named<int> errors[] = {
    {"EIO", EIO},     {"ESTALE", ESTALE}, {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EACCES", EACCES},
    {"EPERM", EPERM}, {"EROFS", EROFS},   {"ENOENT", ENOENT}, {"EINTR", EINTR},   {"EINVAL", EINVAL}};
constexpr Named<Action> actions[] = {
    {"kill", Action::kill},   {"abort", Action::abort}, {"stop", Action::stop},      {"throw", Action::raise},
    {"errno", Action::error}, {"delay", Action::delay}, {"bitflip", Action::bitflip}};
constexpr Named<int64_t ArmedFault::*> conditions[] = {{"rank", &ArmedFault::rank},
                                                       {"step", &ArmedFault::step},
                                                       {"hit", &ArmedFault::hit},
                                                       {"times", &ArmedFault::times}};

template <typename T, size_t N>
T find_named(const Named<T> (&table)[N], std::string_view name, std::string_view specification,
             const char* problem) {
  for (const Named<T>& entry : table) {
    if (entry.name == name) return entry.value;
  }
  throw bad_specification(specification, problem);
}

void parse_action(std::string_view specification, std::string_view text, ArmedFault& fault) {
  const size_t equals = text.find('=');
  const std::string_view value = equals == std::string_view::npos ? "" : text.substr(equals + 1);
  fault.action = find_named(actions, text.substr(0, equals), specification,
                            "the action must be kill, abort, stop, throw, errno, delay or bitflip");
  if (fault.action == Action::delay || (fault.action == Action::bitflip && !value.empty()))
    fault.value = parse_number(specification, value);
  if (fault.action == Action::error)
    fault.value = find_named(errors, value, specification, "errno needs a name such as EIO or ENOSPC");
}

void parse_condition(std::string_view specification, std::string_view text, ArmedFault& fault) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) throw bad_specification(specification, "a condition has no '='");
  const int64_t value = parse_number(specification, text.substr(equals + 1));
  fault.*find_named(conditions, text.substr(0, equals), specification,
                    "a condition must be rank, step, hit or times") = value;
}

ArmedFault parse_fault(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) throw bad_specification(text, "':action' is missing");
  ArmedFault fault;
  const std::string_view target = text.substr(0, colon);
  const size_t at = target.find('@');
  fault.point = target.substr(0, at);
  if (fault.point.empty()) throw bad_specification(text, "the name of the point is missing");
  if (at != std::string_view::npos) {
    for (const std::string& condition : split(target.substr(at + 1), ','))
      parse_condition(text, condition, fault);
  }
  parse_action(text, text.substr(colon + 1), fault);
  return fault;
}

bool matches(const ArmedFault& fault, std::string_view point) {
  const std::string_view pattern = fault.point;
  const bool same =
      pattern.ends_with('*') ? point.starts_with(pattern.substr(0, pattern.size() - 1)) : point == pattern;
  return same && (fault.rank < 0 || fault.rank == context().rank) &&
         (fault.step < 0 || fault.step == context().step);
}

int act(const ArmedFault& fault, std::string_view point, std::span<std::byte> data) {
  switch (fault.action) {
    case Action::kill:
      ::kill(::getpid(), SIGKILL);
      break;
    case Action::abort:
      std::abort();
    case Action::stop:
      ::raise(SIGSTOP);
      break;
    case Action::raise:
      throw Fault(fmt::format("fault injected at {}", point));
    case Action::delay:
      std::this_thread::sleep_for(std::chrono::milliseconds(fault.value));
      break;
    case Action::bitflip:
      if (!data.empty()) {
        const size_t bit = static_cast<size_t>(fault.value) % (data.size() * 8);
        data[bit / 8] ^= std::byte{1} << (bit % 8);
      }
      break;
    case Action::error:
      return static_cast<int>(fault.value);
  }
  return 0;
}

}  // namespace

int fault_detail::hit(std::string_view point, std::span<std::byte> data) {
  std::vector<ArmedFault> due;
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    if (all.recording) {
      if (std::find(all.recorded.begin(), all.recorded.end(), point) == all.recorded.end())
        all.recorded.emplace_back(point);
    }
    for (ArmedFault& fault : all.faults) {
      if (!matches(fault, point)) continue;
      ++fault.hits;
      const bool fires =
          (fault.hit < 0 || fault.hits == fault.hit) && (fault.times < 0 || fault.hits <= fault.times);
      if (fires) due.push_back(fault);
    }
  }
  int error = 0;
  for (const ArmedFault& fault : due) {
    const int injected = act(fault, point, data);
    if (injected != 0) error = injected;
  }
  return error;
}

void set_fault_context(int64_t rank, int64_t step) {
  context() = {rank, step};
}

void arm_faults(std::string_view specification) {
  std::vector<ArmedFault> faults;
  for (const std::string& text : split(specification, ';')) faults.push_back(parse_fault(text));
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.faults = std::move(faults);
  fault_detail::armed.store(!all.faults.empty() || all.recording, std::memory_order_relaxed);
}

void arm_faults_from_environment() {
  if (const char* specification = std::getenv("TERATRON_FAULT")) arm_faults(specification);
}

std::vector<std::string> record_fault_points(void (*body)(void*), void* argument) {
  Registry& all = registry();
  const auto set_recording = [&all](bool on) {
    const std::lock_guard lock(all.mutex);
    all.recording = on;
    if (on) all.recorded.clear();
    fault_detail::armed.store(on || !all.faults.empty(), std::memory_order_relaxed);
  };
  set_recording(true);
  try {
    body(argument);
  } catch (...) {
    set_recording(false);
    throw;
  }
  set_recording(false);
  return all.recorded;
}

}  // namespace teratron
