#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "teratron/pipeline/schedule.h"

namespace teratron {

namespace {

// Start and end of each computation if messages take no time.
struct Span {
  Action action;
  int64_t begin = 0;
  int64_t end = 0;
};

std::vector<std::vector<Span>> times(std::span<const Actions> stages) {
  const auto count = static_cast<int64_t>(stages.size());
  std::map<std::tuple<Op, int64_t, int64_t, int64_t>, int64_t> ends;  // op, stage, chunk, micro-batch
  std::vector<std::vector<Span>> spans(stages.size());
  std::vector<size_t> next(stages.size(), 0);
  // The computation in another stage or chunk whose message this one receives.
  const auto source = [&](const Action& action, int64_t stage) {
    int64_t from = action.op == Op::forward ? stage - 1 : stage + 1;
    int64_t chunk = action.chunk;
    if (from < 0) --chunk;
    if (from == count) ++chunk;
    from = (from + count) % count;
    return std::tuple{action.op, from, chunk, action.microbatch};
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int64_t stage = 0; stage < count; ++stage) {
      const Actions& actions = stages[stage];
      for (; next[stage] < actions.size(); ++next[stage], moved = true) {
        const Action& action = actions[next[stage]];
        if (action.op != Op::forward && action.op != Op::backward) continue;
        const Op receive = action.op == Op::forward ? Op::recv_forward : Op::recv_backward;
        const bool waits = std::find(actions.begin(), actions.end(),
                                     Action{receive, action.chunk, action.microbatch}) != actions.end();
        const auto from = ends.find(source(action, stage));
        if (waits && from == ends.end()) break;
        int64_t begin = spans[stage].empty() ? 0 : spans[stage].back().end;
        if (waits) begin = std::max(begin, from->second);
        const int64_t end = begin + (action.op == Op::forward ? 1 : 2);
        spans[stage].push_back({action, begin, end});
        ends[{action.op, stage, action.chunk, action.microbatch}] = end;
      }
    }
  }
  return spans;
}

std::string label(const Action& action, bool chunks) {
  const std::string text = fmt::format("{}{}", action.op == Op::forward ? 'F' : 'B', action.microbatch);
  return chunks ? fmt::format("{}.{}", text, action.chunk) : text;
}

}  // namespace

std::string draw(std::span<const Actions> stages) {
  const std::vector<std::vector<Span>> spans = times(stages);
  int64_t length = 0;
  int64_t busy = 0;
  size_t width = 0;
  bool chunks = false;
  for (const auto& stage : spans) {
    for (const Span& span : stage) chunks = chunks || span.action.chunk > 0;
  }
  for (const auto& stage : spans) {
    for (const Span& span : stage) {
      length = std::max(length, span.end);
      busy += span.end - span.begin;
      width = std::max(width, label(span.action, chunks).size() + 1);
    }
  }
  std::string picture;
  for (size_t stage = 0; stage < spans.size(); ++stage) {
    std::vector<std::string> cells(length, ".");
    for (const Span& span : spans[stage]) {
      cells[span.begin] = label(span.action, chunks);
      for (int64_t t = span.begin + 1; t < span.end; ++t) cells[t] = std::string(width - 1, '-');
    }
    std::string row = fmt::format("stage {:<2} |", stage);
    for (const std::string& cell : cells) row += fmt::format(" {:<{}}", cell, width - 1);
    picture += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  }
  const auto all = static_cast<double>(length * static_cast<int64_t>(spans.size()));
  return picture +
         fmt::format("idle: {:.1f} % of the time\n", 100.0 * (1.0 - static_cast<double>(busy) / all));
}

std::string draw(const ScheduleShape& shape) {
  return draw(schedules(shape));
}

}  // namespace teratron
