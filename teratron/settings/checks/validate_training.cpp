// Batch sizes, learning-rate and weight-decay schedules, and the dataset split.
#include <algorithm>
#include <limits>
#include <set>

#include "teratron/settings/checks/formula.h"
#include "teratron/settings/checks/validate.h"
#include "teratron/settings/component_options.h"

namespace teratron {

namespace {

void reject_too_large(Validation& v, std::string_view name) {
  v.reject(name, fmt::format("{} is too large: the batch size exceeds 64 bits", name), "Use a smaller one");
}

void check_batch_ramp(Validation& v, int64_t samples_per_micro_batch) {
  const Arguments& a = v.args;
  if (a.rampup_batch_size.size() != 3) return;
  const int64_t start = a.rampup_batch_size[0];
  const int64_t increment = a.rampup_batch_size[1];
  const int64_t samples = a.rampup_batch_size[2];
  const int64_t target = *a.global_batch_size;
  if (start < 1 || increment < 1 || samples < 1 || start >= target || (target - start) % increment != 0) {
    v.reject("rampup_batch_size",
             fmt::format("rampup_batch_size = {} {} {} does not lead to global_batch_size = {}", start,
                         increment, samples, target),
             "Use start < global_batch_size, an increment that divides the difference, and samples > 0");
    return;
  }
  for (const int64_t value : std::set{start, increment}) {
    v.divisible({.name = "rampup_batch_size",
                 .value = value,
                 .by = "micro_batch_size * data_parallel_size",
                 .divisor = samples_per_micro_batch,
                 .reason = "Every batch of the ramp-up consists of whole micro-batches"});
  }
}

// The last size of a step schedule; false if the schedule is rejected. A training that continues may have
// passed sizes that these ranks cannot run: Trainer checks those that are left.
bool derive_scheduled_batch(Validation& v) {
  Arguments& a = v.args;
  if (!a.step_batch_size_schedule) return true;
  try {
    const std::vector<BatchStep> steps = batch_steps(a);
    if (!a.load) {
      BatchSchedule::steps(
          steps, {.micro_batch_size = *a.micro_batch_size, .data_parallel_size = *a.data_parallel_size})
          .require_divisible();
    }
    if (v.chosen("global_batch_size"))
      v.note(fmt::format(
          "--global-batch-size {} has no effect: --step-batch-size-schedule holds every batch size",
          *a.global_batch_size));
    v.derive("global_batch_size", a.global_batch_size, steps.back().global_batch_size);
    return true;
  } catch (const UserError& error) {
    for (const Problem& problem : error.problems())
      v.reject("step_batch_size_schedule", problem.what, problem.fix);
    return false;
  }
}

// Samples of the first step.
std::optional<int64_t> first_batch(const Arguments& a) {
  if (a.step_batch_size_schedule) return batch_steps(a).front().global_batch_size;
  return a.rampup_batch_size.size() == 3 ? a.rampup_batch_size[0] : a.global_batch_size;
}

std::optional<int64_t> largest_batch(const Arguments& a) {
  if (!a.step_batch_size_schedule) return a.global_batch_size;
  const std::vector<BatchStep> steps = batch_steps(a);
  return std::ranges::max(steps, {}, &BatchStep::global_batch_size).global_batch_size;
}

// Samples and tokens are counted in 64 bits, with room for the batch and the epoch that exceed the length.
void check_counted(Validation& v, std::string_view name,
                   std::initializer_list<std::optional<int64_t>> factors) {
  std::optional<int64_t> tokens = v.args.seq_length.value_or(1);
  for (const std::optional<int64_t>& factor : factors) {
    if (!factor) return;
    tokens = product(tokens, factor);
  }
  if (tokens && *tokens < std::numeric_limits<int64_t>::max() / 2) return;
  v.reject(
      name,
      fmt::format("{} is too large: at global_batch_size = {} and seq_length = {} the tokens exceed the 64 "
                  "bits that count them",
                  name, *v.args.global_batch_size, v.args.seq_length.value_or(1)),
      fmt::format("Use a smaller {}, batch or sequence", name));
}

void check_length(Validation& v) {
  const Arguments& a = v.args;
  const std::optional<int64_t> batch = largest_batch(a), first = first_batch(a);
  if (!batch || !first) return;
  check_counted(v, "train_iters", {a.train_iters, batch});
  check_counted(v, "train_samples", {a.train_samples});
  if (a.rampup_batch_size.size() == 3) check_counted(v, "rampup_batch_size", {a.rampup_batch_size[2]});
  const int64_t steps = a.train_iters.value_or(a.train_samples.value_or(0) / std::max<int64_t>(*first, 1));
  check_counted(v, "eval_iters", {a.eval_interval ? steps / *a.eval_interval + 1 : 1, a.eval_iters, batch});
  if (a.skip_train || !a.train_samples || *a.train_samples >= *first) return;
  v.reject("train_samples",
           fmt::format("train_samples = {} is less than a batch of {} samples, so nothing is trained",
                       *a.train_samples, *first),
           fmt::format("Give at least {}, or --skip-train to only evaluate", *first));
}

// The decay lasts as long as the training by default. A training of no steps has none.
void derive_decay(Validation& v, std::string_view name, std::optional<int64_t>& decay,
                  std::optional<int64_t> training) {
  if (!decay && training.value_or(0) > 0) v.derive(name, decay, *training);
}

void check_split(Validation& v) {
  const std::string& split = *v.args.split;
  double sum = 0;
  int parts = 0;
  bool valid = true;
  const char separator = split.find(',') != std::string::npos ? ',' : '/';
  for (size_t begin = 0; begin <= split.size();) {
    const size_t end = std::min(split.find(separator, begin), split.size());
    const Field number{.name = "split", .type = FieldType::real, .traits = {.min = 0}};
    Problem ignored;
    const Value value = parse_value(number, std::vector{split.substr(begin, end - begin)}, ignored);
    valid = valid && std::holds_alternative<double>(value) && ++parts <= 3;
    if (valid) sum += std::get<double>(value);
    begin = end + 1;
  }
  if (valid && sum > 0) return;
  v.reject("split",
           fmt::format("split = '{}' is not up to three weights with a sum above 0", printable(split)),
           "Use for example 969,30,1");
}

}  // namespace

void check_batch(Validation& v) {
  Arguments& a = v.args;
  if (!a.micro_batch_size || !a.data_parallel_size) return;
  const std::optional<int64_t> samples = product(a.micro_batch_size, a.data_parallel_size);
  if (!samples) return reject_too_large(v, "micro_batch_size");
  if (!derive_scheduled_batch(v)) return;
  if (!a.global_batch_size) {
    const std::optional<int64_t> size = product(samples, a.num_micro_batches.value_or(1));
    if (!size) return reject_too_large(v, "num_micro_batches");
    v.derive("global_batch_size", a.global_batch_size, size);
  }
  const bool whole = v.divisible({.name = "global_batch_size",
                                  .value = *a.global_batch_size,
                                  .by = fmt::format("micro_batch_size {} * data_parallel_size {}",
                                                    *a.micro_batch_size, *a.data_parallel_size),
                                  .divisor = *samples,
                                  .reason = "Every rank runs whole micro-batches"});
  if (!whole) return;
  const int64_t micro_batches = *a.global_batch_size / *samples;
  if (a.num_micro_batches && *a.num_micro_batches != micro_batches) {
    v.reject("num_micro_batches",
             fmt::format(
                 "num_micro_batches = {} contradicts global_batch_size = {}, which is {} micro-batches of {} "
                 "samples on {} data-parallel ranks",
                 *a.num_micro_batches, *a.global_batch_size, micro_batches, *a.micro_batch_size,
                 *a.data_parallel_size),
             "Leave one of them out");
  } else if (!a.num_micro_batches) {
    v.derive("num_micro_batches", a.num_micro_batches, micro_batches);
  }
  check_batch_ramp(v, *samples);
  check_length(v);
  if (!a.rampup_batch_size.empty() && a.train_iters)
    v.note(
        "--rampup-batch-size with --train-iters, which Megatron-LM refuses: iterations count, and the "
        "learning "
        "rate's lengths are the samples of so many iterations");
}

void check_schedule(Validation& v) {
  Arguments& a = v.args;
  derive_decay(v, "lr_decay_samples", a.lr_decay_samples, a.train_samples);
  if (!a.train_samples) derive_decay(v, "lr_decay_iters", a.lr_decay_iters, a.train_iters);
  if (a.weight_decay_incr_style != "constant" || v.chosen("start_weight_decay") ||
      v.chosen("end_weight_decay"))
    return;
  v.derive("start_weight_decay", a.start_weight_decay, a.weight_decay);
  v.derive("end_weight_decay", a.end_weight_decay, a.weight_decay);
}

void check_data(Validation& v) {
  Arguments& a = v.args;
  const bool per_split = !a.train_data_path.empty() || !a.valid_data_path.empty() ||
                         !a.test_data_path.empty() || a.per_split_data_args_path;
  if (!a.split && !per_split) v.derive("split", a.split, "969, 30, 1");
  if (a.split) check_split(v);
}

}  // namespace teratron
