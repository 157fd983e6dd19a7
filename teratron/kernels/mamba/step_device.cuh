// What the kernels of one token of each of R sequences share: where a row's states are, and its convolution.
#pragma once

#include "teratron/kernels/mamba/scan_tokens.cuh"
#include "teratron/kernels/mamba/weight_at.cuh"

namespace teratron::cuda {

struct StepPlace {
  int head;
  int64_t row, from, to;  // rows of the states; `from` is below 0 where a sequence begins

  __device__ StepPlace(const ConvStep& conv, int of_head, int64_t of_row)
      : head(of_head), row(of_row), from(conv.from[of_row]), to(conv.to[of_row]) {}
};

/// silu of the convolution of a channel; `writes`: whether this thread moves the channel's inputs on.
template <typename T>
__device__ float step_convolution(const ConvStep& conv, const StepPlace& place, int channel, bool writes) {
  const int kept = conv.width - 1;
  const T x = static_cast<const T*>(conv.x.data)[place.row * conv.x.stride + channel];
  T* const inputs = static_cast<T*>(conv.inputs) + channel;
  const int64_t first = int64_t{channel} * conv.width;  // of the channel's weights
  float value = weight_at<T>(conv.bias, channel, 0.0f) + weight_at<T>(conv.weight, first + kept) * widen(x);
  for (int i = 0; i < kept; ++i) {
    const T old =
        place.from < 0 ? round_to<T>(0.0f) : inputs[(place.from * kept + i) * int64_t{conv.channels}];
    value += weight_at<T>(conv.weight, first + i) * widen(old);
    if (writes && i > 0) inputs[(place.to * kept + i - 1) * int64_t{conv.channels}] = old;
  }
  if (writes) inputs[(place.to * kept + kept - 1) * int64_t{conv.channels}] = x;
  return value / (1.0f + expf(-value));
}

}  // namespace teratron::cuda
