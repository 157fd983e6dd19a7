#include "teratron/generate/decode_graphs.h"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace teratron {

namespace {

constexpr int64_t parameters = 5, values_per_row = 2 + parameters;
constexpr int64_t most_results = 2 + 2 * largest_top_logprobs;  // of a row

// Of an input for so many rows.
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

PageTable::PageTable(int64_t rows, int64_t width, at::Device device)
    : host_(at::zeros({rows, width}, host_options(at::kInt, device))),
      device_(at::zeros({rows, width}, at::TensorOptions().dtype(at::kInt).device(device))) {}

void PageTable::set(const std::vector<StepRow>& rows, int64_t count, int64_t padded) {
  const int64_t width = host_.size(1);
  auto* const all = host_.mutable_data_ptr<int32_t>();
  bool changed = false;
  std::vector<int32_t> line(width);
  for (int64_t i = 0; i < padded; ++i) {
    std::fill(line.begin(), line.end(), 0);
    if (i < count) std::copy(rows[i].pages->begin(), rows[i].pages->end(), line.begin());
    if (std::memcmp(all + i * width, line.data(), line.size() * sizeof(int32_t)) == 0) continue;
    std::copy(line.begin(), line.end(), all + i * width);
    changed = true;
  }
  // It waits: a step without new tokens does not, and the next may change the host's table.
  if (changed) device_.narrow(0, 0, padded).copy_(host_.narrow(0, 0, padded));
}

DecodeGraphs::DecodeGraphs(int64_t max_rows, at::Device device)
    : max_rows_(max_rows),
      device_(device),
      host_(at::zeros({max_rows * values_per_row}, host_options(at::kLong, device))),
      input_(at::zeros({max_rows * values_per_row}, at::TensorOptions().dtype(at::kLong).device(device))),
      result_(at::zeros({most_results * max_rows}, host_options(at::kDouble, device))) {}

int64_t DecodeGraphs::padded_rows(int64_t rows) const {
  int64_t size = 1;
  while (size < rows) size = size < 8 ? 2 * size : size < 32 ? size + 8 : size < 128 ? size + 32 : size + 128;
  return std::min(size, max_rows_);
}

void DecodeGraphs::set_input(const StepInput& step, int64_t padded) {
  const auto rows = static_cast<int64_t>(step.tokens.size());
  auto* const tokens = tokens_of(host_, padded).mutable_data_ptr<int64_t>();
  auto* const positions = positions_of(host_, padded).mutable_data_ptr<int64_t>();
  std::vector<RowSampling> sampling(padded, RowSampling{.top_k = 1});
  for (int64_t i = 0; i < padded; ++i) {
    const bool used = i < rows;
    tokens[i] = used ? step.tokens[i] : 0;
    positions[i] = used ? step.positions[i] : 0;
    if (used) sampling[i] = step.choices[i].sampling;
  }
  parameters_of(host_, padded).copy_(sampling_parameters(sampling));
}

at::Tensor DecodeGraphs::run(const StepInput& step, const SamplingNeeds& needs, const Body& body) {
  const int64_t padded = padded_rows(static_cast<int64_t>(step.tokens.size()));
  set_input(step, padded);
  Captured& captured = graphs_[{padded, needs}];
  const auto work = [&] {
    const int64_t size = padded * values_per_row;
    input_.narrow(0, 0, size).copy_(host_.narrow(0, 0, size), /*non_blocking=*/true);
    const at::Tensor output =
        body(tokens_of(input_, padded), positions_of(input_, padded), parameters_of(input_, padded), needs);
    captured.values = output.size(0);
    result_.narrow(0, 0, output.numel()).copy_(output.reshape(-1), /*non_blocking=*/true);
  };
  if (!captured.warm) {
    captured.warm = true;
    work();
  } else {
    if (!captured.graph) {
      const auto other = std::find_if(graphs_.begin(), graphs_.end(),
                                      [](const auto& entry) { return entry.second.graph != nullptr; });
      captured.graph = capture(work, device_, other == graphs_.end() ? nullptr : other->second.graph.get());
    }
    captured.graph->replay();
  }
  const c10::impl::VirtualGuardImpl impl(device_.type());
  impl.getStream(device_).synchronize();
  return result_.narrow(0, 0, captured.values * padded).view({captured.values, padded});
}

}  // namespace teratron
