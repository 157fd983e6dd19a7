#include "teratron/generate/decode_graphs.h"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>

namespace teratron {

namespace {

constexpr int64_t columns = 7;

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
      host_(at::zeros({max_rows, columns}, host_options(at::kDouble, device))),
      input_(at::zeros({max_rows, columns}, at::TensorOptions().dtype(at::kDouble).device(device))) {}

int64_t DecodeGraphs::padded_rows(int64_t rows) const {
  int64_t size = 1;
  while (size < rows) size = size < 8 ? 2 * size : size < 32 ? size + 8 : size < 128 ? size + 32 : size + 128;
  return std::min(size, max_rows_);
}

at::Tensor DecodeGraphs::run(const StepInput& step, const SamplingNeeds& needs, const Body& body) {
  const auto rows = static_cast<int64_t>(step.tokens.size());
  const int64_t padded = padded_rows(rows);
  auto* out = host_.mutable_data_ptr<double>();
  for (int64_t i = 0; i < padded; ++i) {
    const bool used = i < rows;
    const RowSampling sampling = used ? step.choices[i].sampling : RowSampling{.top_k = 1};
    *out++ = used ? static_cast<double>(step.tokens[i]) : 0.0;
    *out++ = used ? static_cast<double>(step.positions[i]) : 0.0;
    *out++ = sampling.temperature;
    *out++ = static_cast<double>(sampling.top_k);
    *out++ = sampling.top_p;
    *out++ = sampling.uniform;
    *out++ = static_cast<double>(sampling.banned);
  }
  const at::Tensor input = input_.narrow(0, 0, padded);
  input.copy_(host_.narrow(0, 0, padded), /*non_blocking=*/true);
  Captured& captured = graphs_[{padded, needs}];
  const auto work = [&] {
    captured.output = body(input.select(1, 0).to(at::kLong), input.select(1, 1).to(at::kLong),
                           input.narrow(1, 2, columns - 2), needs);
  };
  if (!captured.warm) {
    captured.warm = true;
    work();
    return captured.output;
  }
  if (!captured.graph) {
    const auto other = std::find_if(graphs_.begin(), graphs_.end(),
                                    [](const auto& entry) { return entry.second.graph != nullptr; });
    captured.graph = capture(work, device_, other == graphs_.end() ? nullptr : other->second.graph.get());
  }
  captured.graph->replay();
  return captured.output;
}

}  // namespace teratron
