#include "teratron/testing/schedule_verify.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include <fmt/format.h>

namespace teratron {

namespace {

std::string to_string(const Action& action) {
  static constexpr const char* names[] = {"recv_forward",  "forward",  "send_forward",
                                          "recv_backward", "backward", "send_backward"};
  return fmt::format("{} of micro-batch {} in chunk {}", names[static_cast<size_t>(action.op)],
                     action.microbatch, action.chunk);
}

// A message, identified by the receiver's chunk and the micro-batch.
using Message = std::pair<int64_t, int64_t>;

struct Link {
  std::vector<Message> sent;
  std::vector<Message> posted;
};

// Runs all stages until they finish or none can continue.
class Simulation {
 public:
  explicit Simulation(std::span<const Actions> stages)
      : stages_(stages), next_(stages.size(), 0), done_(stages.size()), links_{} {
    for (auto& direction : links_) direction.resize(stages.size());
  }

  std::vector<std::string> run() {
    for (bool moved = true; moved && problems_.empty();) {
      moved = false;
      for (size_t stage = 0; stage < stages_.size(); ++stage) {
        while (next_[stage] < stages_[stage].size() && step(stage)) moved = true;
      }
    }
    if (problems_.empty()) check_end();
    return std::move(problems_);
  }

 private:
  enum Direction : size_t { forwards, backwards };
  using Key = std::tuple<Op, int64_t, int64_t>;

  int64_t last() const { return static_cast<int64_t>(stages_.size()) - 1; }

  // The link on which `stage` receives in a direction.
  Link& incoming(Direction direction, size_t stage) { return links_[direction][stage]; }

  // Receiver of a message sent by `stage`, and the message there.
  std::pair<size_t, Message> target(const Action& action, size_t stage) const {
    const auto from = static_cast<int64_t>(stage);
    if (action.op == Op::send_forward) {
      return from < last() ? std::pair{stage + 1, Message{action.chunk, action.microbatch}}
                           : std::pair{size_t{0}, Message{action.chunk + 1, action.microbatch}};
    }
    return from > 0 ? std::pair{stage - 1, Message{action.chunk, action.microbatch}}
                    : std::pair{static_cast<size_t>(last()), Message{action.chunk - 1, action.microbatch}};
  }

  static bool is_forward(Op op) { return op <= Op::send_forward; }

  bool send(const Action& action, size_t stage) {
    const auto [receiver, message] = target(action, stage);
    Link& link = incoming(is_forward(action.op) ? forwards : backwards, receiver);
    if (link.posted.size() < link.sent.size()) return false;
    link.sent.push_back(message);
    return true;
  }

  void post(const Action& action, size_t stage) {
    incoming(is_forward(action.op) ? forwards : backwards, stage)
        .posted.push_back({action.chunk, action.microbatch});
  }

  // Whether the message of a computation has arrived, if its receive was posted.
  bool has_message(const Action& action, size_t stage) {
    const bool forward = action.op == Op::forward;
    const Op receive = forward ? Op::recv_forward : Op::recv_backward;
    if (!done_[stage].contains({receive, action.chunk, action.microbatch})) return true;
    const Link& link = incoming(forward ? forwards : backwards, stage);
    const Message message{action.chunk, action.microbatch};
    return std::find(link.sent.begin(), link.sent.end(), message) != link.sent.end();
  }

  bool step(size_t stage) {
    const Action& action = stages_[stage][next_[stage]];
    const Key key{action.op, action.chunk, action.microbatch};
    if (done_[stage].contains(key)) problem(stage, to_string(action) + " runs twice");
    switch (action.op) {
      case Op::recv_forward:
      case Op::recv_backward:
        post(action, stage);
        break;
      case Op::send_forward:
      case Op::send_backward:
        check_computed(action, stage);
        if (!send(action, stage)) return false;
        break;
      case Op::backward:
        if (!done_[stage].contains({Op::forward, action.chunk, action.microbatch})) {
          problem(stage, to_string(action) + " runs before its forward");
        }
        [[fallthrough]];
      case Op::forward:
        if (!has_message(action, stage)) return false;
        break;
    }
    done_[stage].insert(key);
    ++next_[stage];
    return true;
  }

  void check_computed(const Action& action, size_t stage) {
    const Op computed_by = action.op == Op::send_forward ? Op::forward : Op::backward;
    if (done_[stage].contains({computed_by, action.chunk, action.microbatch})) return;
    problem(stage, to_string(action) + " runs before its tensor is computed");
  }

  // Every chunk of every stage must run the same micro-batches, and receives must match sends in order.
  void check_end() {
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      if (next_[stage] == stages_[stage].size()) continue;
      problem(stage, "deadlocks at " + to_string(stages_[stage][next_[stage]]));
    }
    if (!problems_.empty()) return;
    for (const auto& direction : links_) {
      for (size_t stage = 0; stage < direction.size(); ++stage) {
        if (direction[stage].sent != direction[stage].posted) {
          problem(stage, "does not receive messages in the order they are sent");
        }
      }
    }
    if (problems_.empty()) check_complete();
  }

  void check_complete() {
    int64_t chunks = 0;
    int64_t microbatches = 0;
    bool trains = false;
    for (const auto& done : done_) {
      for (const auto& [op, chunk, microbatch] : done) {
        chunks = std::max(chunks, chunk + 1);
        microbatches = std::max(microbatches, microbatch + 1);
        trains = trains || op == Op::backward;
      }
    }
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        for (int64_t microbatch = 0; microbatch < microbatches; ++microbatch) {
          check_place(stage, chunk, microbatch, trains, chunks);
        }
      }
    }
  }

  void check_place(size_t stage, int64_t chunk, int64_t microbatch, bool trains, int64_t chunks) {
    const bool first = stage == 0 && chunk == 0;
    const bool last_chunk = static_cast<int64_t>(stage) == last() && chunk == chunks - 1;
    const auto need = [&](Op op, bool required) {
      if (done_[stage].contains({op, chunk, microbatch}) == required) return;
      problem(stage, fmt::format("{} is {}", to_string(Action{op, chunk, microbatch}),
                                 required ? "missing" : "unexpected"));
    };
    need(Op::recv_forward, !first);
    need(Op::forward, true);
    need(Op::send_forward, !last_chunk);
    need(Op::recv_backward, trains && !last_chunk);
    need(Op::backward, trains);
    need(Op::send_backward, trains && !first);
  }

  void problem(size_t stage, const std::string& what) {
    problems_.push_back(fmt::format("stage {}: {}", stage, what));
  }

  std::span<const Actions> stages_;
  std::vector<size_t> next_;
  std::vector<std::set<Key>> done_;
  std::array<std::vector<Link>, 2> links_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> verify(std::span<const Actions> stages) {
  return Simulation(stages).run();
}

std::vector<std::string> verify(const ScheduleShape& shape) {
  const std::vector<Actions> stages = schedules(shape);
  std::vector<std::string> problems = verify(stages);
  for (int64_t stage = 0; stage < shape.stages; ++stage) {
    const int64_t peak = peak_activations(stages[stage]);
    const int64_t formula = activations_by_formula(stage, shape);
    if (peak == formula) continue;
    problems.push_back(fmt::format("stage {}: {} activations, by the formula {}", stage, peak, formula));
  }
  return problems;
}

}  // namespace teratron
