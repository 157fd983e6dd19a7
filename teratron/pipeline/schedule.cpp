#include "teratron/pipeline/schedule.h"

#include <algorithm>

#include <fmt/format.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

int64_t group_size(const ScheduleShape& shape) {
  return shape.microbatch_group > 0 ? shape.microbatch_group : shape.stages;
}

// One forward. A group of micro-batches passes through all chunks before the next group starts.
struct Slot {
  int64_t microbatch = 0;
  int64_t chunk = 0;
};

std::vector<Slot> schedule_table(const ScheduleShape& shape) {
  std::vector<Slot> slots;
  const int64_t group = group_size(shape);
  for (int64_t first = 0; first < shape.microbatches; first += group) {
    const int64_t end = std::min(first + group, shape.microbatches);
    for (int64_t chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int64_t microbatch = first; microbatch < end; ++microbatch) slots.push_back({microbatch, chunk});
    }
  }
  return slots;
}

int64_t warmup_forwards(int64_t stage, const ScheduleShape& shape) {
  const int64_t total = shape.microbatches * shape.chunks;
  if (shape.forward_only) return total;
  const int64_t later = shape.stages - stage - 1;
  if (shape.chunks == 1) return std::min(total, later);
  return std::min(total, 2 * later + (shape.chunks - 1) * group_size(shape));
}

// Forwards and backwards, without messages.
Actions computations(int64_t stage, const ScheduleShape& shape) {
  const std::vector<Slot> slots = schedule_table(shape);
  const auto total = static_cast<int64_t>(slots.size());
  const int64_t warmup = warmup_forwards(stage, shape);
  const auto forward = [&](int64_t k) { return Action{Op::forward, slots[k].chunk, slots[k].microbatch}; };
  const auto backward = [&](int64_t k) {
    return Action{Op::backward, shape.chunks - 1 - slots[k].chunk, slots[k].microbatch};
  };
  Actions order;
  for (int64_t k = 0; k < warmup; ++k) order.push_back(forward(k));
  if (shape.forward_only) return order;
  for (int64_t k = 0; k < total; ++k) {
    if (warmup + k < total) order.push_back(forward(warmup + k));
    order.push_back(backward(k));
  }
  return order;
}

struct Messages {
  bool receives = false;
  bool sends = false;
};

Messages messages_of(const Action& action, int64_t stage, const ScheduleShape& shape) {
  const bool first = stage == 0 && action.chunk == 0;
  const bool last = stage == shape.stages - 1 && action.chunk == shape.chunks - 1;
  return action.op == Op::forward ? Messages{!first, !last} : Messages{!last, !first};
}

// By computation, the index of the computation before which its receive is posted. On wraparound links the
// sender is up to (group - stages) micro-batches ahead, because a group passes through one chunk before the
// next chunk begins: as many more receives are posted early there.
std::vector<size_t> receive_times(const Actions& order, int64_t stage, const ScheduleShape& shape) {
  const size_t lead = shape.early_receives ? 1 : 0;
  const auto excess = static_cast<size_t>(std::max<int64_t>(group_size(shape) - shape.stages, 0));
  const auto early = [lead](size_t time) { return time > lead ? time - lead : 0; };
  std::vector<size_t> times;
  std::vector<size_t> wraparounds;
  for (size_t i = 0; i < order.size(); ++i) {
    const bool wraps = order[i].op == Op::forward ? stage == 0 : stage == shape.stages - 1;
    times.push_back(early(i));
    if (!wraps || !messages_of(order[i], stage, shape).receives) continue;
    wraparounds.push_back(i);
    const size_t count = wraparounds.size();
    times.back() = count > excess ? early(wraparounds[count - 1 - excess]) : 0;
  }
  return times;
}

Actions with_messages(const Actions& order, int64_t stage, const ScheduleShape& shape) {
  const std::vector<size_t> times = receive_times(order, stage, shape);
  std::vector<Actions> receives(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    if (!messages_of(order[i], stage, shape).receives) continue;
    const Op op = order[i].op == Op::forward ? Op::recv_forward : Op::recv_backward;
    receives[times[i]].push_back({op, order[i].chunk, order[i].microbatch});
  }
  Actions all;
  for (size_t i = 0; i < order.size(); ++i) {
    const Action& action = order[i];
    all.insert(all.end(), receives[i].begin(), receives[i].end());
    all.push_back(action);
    if (!messages_of(action, stage, shape).sends) continue;
    const Op op = action.op == Op::forward ? Op::send_forward : Op::send_backward;
    all.push_back({op, action.chunk, action.microbatch});
  }
  return all;
}

}  // namespace

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
  return shape.chunks > 1 ? interleaved(stage, shape) : one_f_one_b(stage, shape);
}

std::vector<Actions> schedules(const ScheduleShape& shape) {
  std::vector<Actions> stages;
  for (int64_t stage = 0; stage < shape.stages; ++stage) stages.push_back(schedule(stage, shape));
  return stages;
}

std::string interleaving_problem(const ScheduleShape& shape) {
  const int64_t group = group_size(shape);
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
  return std::min(warmup_forwards(stage, shape) + 1, shape.microbatches * shape.chunks);
}

int64_t peak_activations(std::span<const Action> actions) {
  const bool trains = std::any_of(actions.begin(), actions.end(),
                                  [](const Action& action) { return action.op == Op::backward; });
  int64_t live = 0;
  int64_t peak = 0;
  for (const Action& action : actions) {
    if (action.op == Op::forward) peak = std::max(peak, ++live);
    if (action.op == Op::backward) --live;
  }
  return trains ? peak : 0;
}

}  // namespace teratron
