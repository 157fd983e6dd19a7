#include "teratron/pipeline/schedule.h"

#include <algorithm>

#include <fmt/format.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

int64_t group_of(const ScheduleShape& shape) {
  return shape.group > 0 ? shape.group : shape.stages;
}

// The k-th forward of a stage is of this micro-batch and chunk: a group of micro-batches goes through all chunks
// before the next one starts.
struct Place {
  int64_t microbatch = 0;
  int64_t chunk = 0;
};

std::vector<Place> table(const ScheduleShape& shape) {
  std::vector<Place> places;
  const int64_t group = group_of(shape);
  for (int64_t first = 0; first < shape.microbatches; first += group) {
    const int64_t end = std::min(first + group, shape.microbatches);
    for (int64_t chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int64_t microbatch = first; microbatch < end; ++microbatch) places.push_back({microbatch, chunk});
    }
  }
  return places;
}

int64_t warm_up(int64_t stage, const ScheduleShape& shape) {
  const int64_t total = shape.microbatches * shape.chunks;
  if (shape.forward_only) return total;
  const int64_t behind = shape.stages - stage - 1;
  if (shape.chunks == 1) return std::min(total, behind);
  return std::min(total, 2 * behind + (shape.chunks - 1) * group_of(shape));
}

// Forwards and backwards alone.
Actions computations(int64_t stage, const ScheduleShape& shape) {
  const std::vector<Place> places = table(shape);
  const auto total = static_cast<int64_t>(places.size());
  const int64_t ahead = warm_up(stage, shape);
  const auto forward = [&](int64_t k) { return Action{Op::forward, places[k].chunk, places[k].microbatch}; };
  const auto backward = [&](int64_t k) {
    return Action{Op::backward, shape.chunks - 1 - places[k].chunk, places[k].microbatch};
  };
  Actions order;
  for (int64_t k = 0; k < ahead; ++k) order.push_back(forward(k));
  if (shape.forward_only) return order;
  for (int64_t k = 0; k < total; ++k) {
    if (ahead + k < total) order.push_back(forward(ahead + k));
    order.push_back(backward(k));
  }
  return order;
}

struct Messages {
  bool before = false;  // it uses a message
  bool after = false;   // it makes one
};

Messages messages_of(const Action& action, int64_t stage, const ScheduleShape& shape) {
  const bool begins = stage == 0 && action.chunk == 0;
  const bool ends = stage == shape.stages - 1 && action.chunk == shape.chunks - 1;
  return action.op == Op::forward ? Messages{!begins, !ends} : Messages{!ends, !begins};
}

// Before which computation each computation's message is asked for. Where the ring closes, the stage before is up to
// (group - stages) micro-batches ahead, because a whole group goes through one chunk before the next chunk begins:
// so many more messages must find a place there.
std::vector<size_t> asking_times(const Actions& order, int64_t stage, const ScheduleShape& shape) {
  const size_t lead = shape.early_receives ? 1 : 0;
  const auto excess = static_cast<size_t>(std::max<int64_t>(group_of(shape) - shape.stages, 0));
  const auto early = [lead](size_t time) { return time > lead ? time - lead : 0; };
  std::vector<size_t> times;
  std::vector<size_t> round_the_ring;
  for (size_t i = 0; i < order.size(); ++i) {
    const bool crosses = order[i].op == Op::forward ? stage == 0 : stage == shape.stages - 1;
    times.push_back(early(i));
    if (!crosses || !messages_of(order[i], stage, shape).before) continue;
    round_the_ring.push_back(i);
    const size_t count = round_the_ring.size();
    times.back() = count > excess ? early(round_the_ring[count - 1 - excess]) : 0;
  }
  return times;
}

Actions with_messages(const Actions& order, int64_t stage, const ScheduleShape& shape) {
  const std::vector<size_t> times = asking_times(order, stage, shape);
  std::vector<Actions> asked(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    if (!messages_of(order[i], stage, shape).before) continue;
    const Op op = order[i].op == Op::forward ? Op::recv_forward : Op::recv_backward;
    asked[times[i]].push_back({op, order[i].chunk, order[i].microbatch});
  }
  Actions all;
  for (size_t i = 0; i < order.size(); ++i) {
    const Action& action = order[i];
    all.insert(all.end(), asked[i].begin(), asked[i].end());
    all.push_back(action);
    if (!messages_of(action, stage, shape).after) continue;
    const Op op = action.op == Op::forward ? Op::send_forward : Op::send_backward;
    all.push_back({op, action.chunk, action.microbatch});
  }
  return all;
}

}  // namespace

Actions no_pipeline(const ScheduleShape& shape) {
  TERATRON_ASSERT(shape.stages == 1 && shape.chunks == 1, "{} stages, {} chunks", shape.stages, shape.chunks);
  return one_f_one_b(0, shape);
}

Actions one_f_one_b(int64_t stage, const ScheduleShape& shape) {
  TERATRON_ASSERT(shape.chunks == 1 && stage >= 0 && stage < shape.stages, "stage {} of {}, {} chunks", stage,
                  shape.stages, shape.chunks);
  return with_messages(computations(stage, shape), stage, shape);
}

Actions interleaved(int64_t stage, const ScheduleShape& shape) {
  TERATRON_ASSERT(shape.stages > 1 && stage >= 0 && stage < shape.stages, "stage {} of {}", stage,
                  shape.stages);
  TERATRON_ASSERT(shape.forward_only || interleaving_problem(shape).empty(), "{}",
                  interleaving_problem(shape));
  return with_messages(computations(stage, shape), stage, shape);
}

Actions schedule(int64_t stage, const ScheduleShape& shape) {
  if (shape.chunks > 1) return interleaved(stage, shape);
  return shape.stages > 1 ? one_f_one_b(stage, shape) : no_pipeline(shape);
}

std::vector<Actions> schedules(const ScheduleShape& shape) {
  std::vector<Actions> stages;
  for (int64_t stage = 0; stage < shape.stages; ++stage) stages.push_back(schedule(stage, shape));
  return stages;
}

std::string interleaving_problem(const ScheduleShape& shape) {
  const int64_t group = group_of(shape);
  if (group < shape.stages) {
    return fmt::format("a group of {} micro-batches is smaller than the pipeline of {} stages", group,
                       shape.stages);
  }
  if (shape.microbatches < group) {
    return fmt::format("{} micro-batches do not fill a group of {}", shape.microbatches, group);
  }
  const int64_t rest = shape.microbatches % group;
  if (rest == 0 || rest >= shape.stages) return "";
  return fmt::format("of {} micro-batches in groups of {} the last group holds {}, fewer than the {} stages",
                     shape.microbatches, group, rest, shape.stages);
}

int64_t activations_by_formula(int64_t stage, const ScheduleShape& shape) {
  if (shape.forward_only) return 0;
  return std::min(warm_up(stage, shape) + 1, shape.microbatches * shape.chunks);
}

int64_t peak_activations(std::span<const Action> actions) {
  const bool trains = std::any_of(actions.begin(), actions.end(),
                                  [](const Action& action) { return action.op == Op::backward; });
  int64_t kept = 0;
  int64_t most = 0;
  for (const Action& action : actions) {
    if (action.op == Op::forward) most = std::max(most, ++kept);
    if (action.op == Op::backward) --kept;
  }
  return trains ? most : 0;
}

}  // namespace teratron
