#include "teratron/generate/graphs/decode_graphs.h"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "teratron/kernels/sampling/choose_tokens.h"

namespace teratron {

namespace {

constexpr int64_t parameters = 5, values_per_row = 2 + parameters;
constexpr int64_t most_results = 2 + 2 * largest_top_logprobs;  // of a row

// Parts of an input for so many rows.
at::Tensor tokens_of(const at::Tensor& input, int64_t rows) {
  return input.narrow(0, 0, rows);
}
at::Tensor positions_of(const at::Tensor& input, int64_t rows) {
  return input.narrow(0, rows, rows);
}
at::Tensor parameters_of(const at::Tensor& input, int64_t rows) {
  return input.narrow(0, 2 * rows, parameters * rows).view(at::kDouble).view({rows, parameters});
}

at::TensorOptions host_options(at::ScalarType dtype, at::Device device) {
  return at::TensorOptions().dtype(dtype).pinned_memory(device.is_cuda());
}

}  // namespace

PageTable::PageTable(const Shape& shape, at::Device device)
    : shape_(shape),
      host_(at::zeros({shape.rows, shape.width}, host_options(at::kInt, device))),
      device_(at::zeros({shape.rows, shape.width}, at::TensorOptions().dtype(at::kInt).device(device))) {}

bool PageTable::set(const std::vector<StepRow>& rows, int64_t count, int64_t padded) {
  const int64_t width = host_.size(1);
  auto* const all = host_.mutable_data_ptr<int32_t>();
  bool changed = false;
  std::vector<int32_t> line(width);
  for (int64_t i = 0; i < padded; ++i) {
    std::fill(line.begin(), line.end(), 0);
    if (i < count) {
      const std::vector<int32_t>& pages = *(rows[i].*shape_.pages);
      std::copy(pages.begin(), pages.end(), line.begin());
    }
    if (std::memcmp(all + i * width, line.data(), line.size() * sizeof(int32_t)) == 0) continue;
    std::copy(line.begin(), line.end(), all + i * width);
    changed = true;
  }
  // It waits: a step without new tokens does not, and the next may change the host's table.
  if (changed) device_.narrow(0, 0, padded).copy_(host_.narrow(0, 0, padded));
  return changed;
}

RowNumbers::RowNumbers(int64_t rows, at::Device device)
    : host_(rows, 0), device_(at::zeros({rows}, at::TensorOptions().dtype(at::kLong).device(device))) {}

bool RowNumbers::set(const std::vector<int64_t>& numbers) {
  if (std::equal(numbers.begin(), numbers.end(), host_.begin())) return false;
  std::copy(numbers.begin(), numbers.end(), host_.begin());
  device_.narrow(0, 0, std::ssize(numbers)).copy_(at::tensor(numbers, at::kLong));
  return true;
}

SourceTable::SourceTable(int64_t rows, int64_t width, at::Device device)
    : pages_({rows, width, &StepRow::source_pages}, device), last_(rows, device) {}

bool SourceTable::set(const std::vector<StepRow>& rows, int64_t count, int64_t padded) {
  std::vector<int64_t> last(static_cast<size_t>(padded), 0);
  for (int64_t i = 0; i < count; ++i) last[i] = rows[i].source_length - 1;
  const bool new_pages = pages_.set(rows, count, padded), new_last = last_.set(last);
  return new_pages || new_last;
}

SamplingNeeds needs_of(const StepInput& step) {
  std::vector<RowSampling> rows;
  for (const StepChoice& choice : step.choices) rows.push_back(choice.sampling);
  SamplingNeeds needs = needs_of(rows);
  needs.logprobs = step.logprobs;
  needs.top = step.top;
  return needs;
}

DecodeGraphs::DecodeGraphs(int64_t max_rows, at::Device device, std::function<void()> replayed)
    : max_rows_(max_rows),
      device_(device),
      replayed_(std::move(replayed)),
      input_(at::zeros({max_rows * values_per_row}, at::TensorOptions().dtype(at::kLong).device(device))),
      chosen_(at::zeros({max_rows}, at::TensorOptions().dtype(at::kDouble).device(device))) {
  for (Slot& slot : slots_) {
    slot.input = at::zeros({max_rows * values_per_row}, host_options(at::kLong, device));
    slot.result = at::zeros({most_results * max_rows}, host_options(at::kDouble, device));
    if (device.is_cuda()) slot.done.emplace(device.type());
  }
}

DecodeGraphs::~DecodeGraphs() {
  for (Slot& slot : slots_) wait(slot);
}

void DecodeGraphs::wait(Slot& slot) const {
  if (slot.done) slot.done->synchronize();
}

int64_t DecodeGraphs::padded_rows(int64_t rows) const {
  int64_t size = 1;
  while (size < rows) size = size < 8 ? 2 * size : size < 32 ? size + 8 : size < 128 ? size + 32 : size + 128;
  return std::min(size, max_rows_);
}

void DecodeGraphs::set_input(const StepInput& step, int64_t padded) {
  const auto rows = static_cast<int64_t>(step.rows.size());
  const at::Tensor& input = slots_[current_].input;
  auto* const tokens = tokens_of(input, padded).mutable_data_ptr<int64_t>();
  auto* const positions = positions_of(input, padded).mutable_data_ptr<int64_t>();
  std::vector<RowSampling> sampling(padded, RowSampling{.top_k = 1});
  for (int64_t i = 0; i < padded; ++i) {
    const bool used = i < rows;
    tokens[i] = used ? step.tokens[i] : 0;
    positions[i] = used ? step.positions[i] : 0;
    if (used) sampling[i] = step.choices[i].sampling;
  }
  parameters_of(input, padded).copy_(sampling_parameters(sampling));
}

const DeviceGraph* DecodeGraphs::any_graph() const {
  for (const Slot& slot : slots_) {
    for (const auto& [size, captured] : slot.graphs) {
      if (captured.graph) return captured.graph.get();
    }
  }
  return nullptr;
}

// In the slot that was not used last.
void DecodeGraphs::launch(const StepInput& step, const SamplingNeeds& needs, const Body& body) {
  const int64_t padded = padded_rows(static_cast<int64_t>(step.rows.size()));
  current_ = 1 - current_;
  Slot& slot = slots_[current_];
  wait(slot);
  set_input(step, padded);
  Captured& captured = slot.graphs[{padded, needs}];
  const auto work = [this, &slot, &captured, padded, needs, body] {  // replayed after this call
    const int64_t size = padded * values_per_row;
    input_.narrow(0, 0, size).copy_(slot.input.narrow(0, 0, size), /*non_blocking=*/true);
    const at::Tensor chosen = chosen_.narrow(0, 0, padded),
                     tokens = replace_negative_tokens(tokens_of(input_, padded), chosen);
    const at::Tensor output =
        body(tokens, positions_of(input_, padded), parameters_of(input_, padded), needs);
    captured.values = output.size(0);
    chosen.copy_(output[0]);
    slot.result.narrow(0, 0, output.numel()).copy_(output.reshape(-1), /*non_blocking=*/true);
  };
  if (!captured.warm) {
    captured.warm = true;
    work();
  } else {
    if (!captured.graph) captured.graph = capture(work, device_, any_graph());
    captured.graph->replay();
    if (replayed_) replayed_();
  }
  if (slot.done) slot.done->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

StepInput DecodeGraphs::step_after(const StepInput& step) {
  StepInput next = step;
  next.continues = false;
  next.tokens.assign(step.tokens.size(), -1);
  for (int64_t& position : next.positions) position += 1;
  for (StepChoice& choice : next.choices) choice.sampling = choice.following;
  return next;
}

bool DecodeGraphs::is_ahead(const StepInput& step, const SamplingNeeds& needs) const {
  if (!ahead_ || ahead_->needs != needs || step.tokens != chosen_tokens_ ||
      step.positions != ahead_->step.positions)
    return false;
  return std::equal(
      step.choices.begin(), step.choices.end(), ahead_->step.choices.begin(), ahead_->step.choices.end(),
      [](const StepChoice& asked, const StepChoice& done) { return asked.sampling == done.sampling; });
}

at::Tensor DecodeGraphs::run(const StepInput& step, bool same_pages, const Body& body) {
  const auto rows = static_cast<int64_t>(step.rows.size());
  const SamplingNeeds needs = needs_of(step);
  if (!same_pages || !is_ahead(step, needs)) launch(step, needs, body);
  Slot& slot = slots_[current_];
  ahead_.reset();
  if (step.continues) {
    StepInput next = step_after(step);
    const SamplingNeeds next_needs = needs_of(next);
    launch(next, next_needs, body);
    ahead_ = {std::move(next), next_needs};
  }
  wait(slot);
  const int64_t padded = padded_rows(rows), values = slot.graphs.at({padded, needs}).values;
  const at::Tensor result = slot.result.narrow(0, 0, values * padded).view({values, padded});
  const auto* const ids = result.const_data_ptr<double>();
  chosen_tokens_.assign(ids, ids + rows);
  return result;
}

}  // namespace teratron
