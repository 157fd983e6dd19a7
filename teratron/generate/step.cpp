#include "teratron/generate/step.h"

#include <algorithm>

namespace teratron {

namespace {

// A step of the rows [begin, end) alone.
StepInput part_of(const StepInput& step, size_t begin, size_t end) {
  const int64_t first = step.rows[begin].first_token;
  const int64_t last = step.rows[end - 1].first_token + step.rows[end - 1].tokens;
  const auto is_inside = [&](int64_t token) { return token >= first && token < last; };
  StepInput part{.tokens = {step.tokens.begin() + first, step.tokens.begin() + last},
                 .positions = {step.positions.begin() + first, step.positions.begin() + last},
                 .rows = {step.rows.begin() + static_cast<int64_t>(begin),
                          step.rows.begin() + static_cast<int64_t>(end)},
                 .choices = {},
                 .targets = {},
                 .logprobs = step.logprobs,
                 .top = step.top};
  for (StepRow& row : part.rows) row.first_token -= first;
  for (const StepChoice& choice : step.choices) {
    if (!is_inside(choice.token)) continue;
    part.choices.push_back(choice);
    part.choices.back().token -= first;
  }
  for (const StepTarget& target : step.targets) {
    if (is_inside(target.token)) part.targets.push_back({target.token - first, target.next});
  }
  return part;
}

}  // namespace

std::vector<StepInput> split_step(const StepInput& step, int64_t parts) {
  const bool is_one = std::ranges::none_of(step.rows, [&](const StepRow& row) {
    return row.source_tokens || row.adapter != step.rows.front().adapter;
  });
  if (parts == 1 && is_one) return {step};
  const auto tokens = static_cast<int64_t>(step.tokens.size());
  const int64_t wanted = (tokens + parts - 1) / parts;
  std::vector<StepInput> all;
  for (size_t begin = 0; begin < step.rows.size();) {
    size_t end = begin;
    for (int64_t size = 0; end < step.rows.size() && size < wanted; ++end) {
      const StepRow &first = step.rows[begin], &next = step.rows[end];
      if (end > begin && (next.source_tokens || first.source_tokens || next.adapter != first.adapter)) break;
      size += step.rows[end].tokens;
    }
    all.push_back(part_of(step, begin, end));
    begin = end;
  }
  return all;
}

}  // namespace teratron
