#include "teratron/train/engine/step_result.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace teratron {

DeviceScalars::DeviceScalars(at::Device device, const Sizes& sizes)
    : sizes_(sizes),
      values_(at::zeros({loss + 2 * sizes.losses + sizes.custom_metrics + sizes.layer_sums},
                        at::TensorOptions().dtype(at::kDouble).device(device))) {}

at::Tensor DeviceScalars::total_loss() const {
  if (sizes_.losses == 1) return (*this)[loss];
  return values_.slice(0, loss, first_metric(), 2).sum(0, /*keepdim=*/true);
}

struct PendingStep::End {
  std::chrono::steady_clock::time_point host = std::chrono::steady_clock::now();
  std::optional<c10::Event> device = std::nullopt;  // on a GPU

  double seconds_since(const End& previous) const {
    return device ? 1e-3 * previous.device->elapsedTime(*device)
                  : std::chrono::duration<double>(host - previous.host).count();
  }
};

PendingStep::PendingStep(const DeviceScalars& scalars, std::shared_ptr<const End> previous)
    : sizes_(scalars.sizes()), previous_(std::move(previous)) {
  auto end = std::make_shared<End>();
  end_ = end;
  const at::Tensor& values = scalars.values();
  if (values.is_cpu()) {
    values_ = values.clone();  // CUDA graphs reuse the scalars in the next step
    return;
  }
  values_ = at::empty(values.sizes(), values.options().device(at::kCPU).pinned_memory(true));
  values_.copy_(values, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl guard(values.device().type());
  end->device.emplace(values.device().type(), c10::EventFlag::BACKEND_DEFAULT);  // with timing
  end->device->record(guard.getStream(values.device()));
}

StepResult PendingStep::wait() {
  using S = DeviceScalars;
  if (end_->device) end_->device->synchronize();
  const auto* values = values_.const_data_ptr<double>();
  const double count = std::max(values[S::tokens], 1.0);
  std::vector<double> losses, custom_metrics;
  int64_t slot = S::loss;
  for (; slot < S::loss + 2 * sizes_.losses; slot += 2)
    losses.push_back(values[slot] / std::max(values[slot + 1], 1.0));
  const int64_t first_sum = values_.numel() - sizes_.layer_sums;
  for (; slot < first_sum; ++slot) custom_metrics.push_back(values[slot] / count);
  return {.loss = std::accumulate(losses.begin(), losses.end(), 0.0),
          .losses = losses,
          .tokens = static_cast<int64_t>(values[S::tokens]),
          .grad_norm = values[S::grad_norm],
          .nonfinite = values[S::found_inf] != 0.0,
          .num_zeros = static_cast<int64_t>(values[S::num_zeros]),
          .parameter_norm = values[S::parameter_norm],
          .stop_request = static_cast<int64_t>(values[S::stop_request]),
          .progress = -static_cast<int64_t>(values[S::negative_progress]),
          .graph_vote = static_cast<int64_t>(values[S::graph_vote]),
          .seconds = previous_ ? end_->seconds_since(*previous_) : 0.0,
          .custom_metrics = std::move(custom_metrics),
          .layer_sums = {values + first_sum, values + values_.numel()},
          .metrics = std::move(metrics)};
}

}  // namespace teratron
