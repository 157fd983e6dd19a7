#include "teratron/train/engine/returned_losses.h"

#include <algorithm>
#include <iterator>

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

void check_returned(const StepLoss& result, const ReturnedCounts& expected) {
  const auto losses = std::ssize(result.losses), metrics = std::ssize(result.metrics);
  if (losses != expected.losses || metrics != expected.metrics) {
    throw config_error(
        {.what = fmt::format("the train step returned {} losses and {} metrics instead of {} and {}", losses,
                             metrics, expected.losses, expected.metrics),
         .where = "TrainStep::forward_step",
         .fix = "Return one loss per name of the model's plan, and one metric per name of "
                "TrainStep::metric_names()"});
  }
  const auto is_number = [](const at::Tensor& value) { return value.defined() && value.numel() == 1; };
  bool are_numbers = std::ranges::all_of(result.metrics, is_number);
  for (const LossTerm& term : result.losses)
    are_numbers = are_numbers && is_number(term.sum) && is_number(term.count);
  if (are_numbers) return;
  throw config_error({.what = "the train step returned a loss, count or metric that is not one number",
                      .where = "TrainStep::forward_step",
                      .fix = "Return sums over the micro-batch, tensors of one element"});
}

}  // namespace teratron
