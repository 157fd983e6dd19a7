// What a custom function carries from its forward to its backward: pointers to long-lived objects (parameters, groups), which
// must outlive the graph (they live as long as the model), and tensors that backward lets go of.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"

namespace teratron {

template <typename T>
void save_pointer(torch::autograd::AutogradContext* context, const char* key, const T* pointer) {
  context->saved_data[key] = reinterpret_cast<int64_t>(pointer);
}

template <typename T>
T* saved_pointer(torch::autograd::AutogradContext* context, const char* key) {
  return reinterpret_cast<T*>(context->saved_data[key].toInt());
}

/// Kept for backward, and free as soon as it is not needed any more: save_for_backward keeps until the end.
inline void keep(torch::autograd::AutogradContext* context, const char* key, const at::Tensor& x) {
  context->saved_data[key] = x;
}

inline at::Tensor take(torch::autograd::AutogradContext* context, const char* key) {
  const auto place = context->saved_data.find(key);
  TERATRON_ASSERT(place != context->saved_data.end(), "{} is gone: backward ran twice", key);
  at::Tensor x = place->second.toTensor();
  context->saved_data.erase(place);
  return x;
}

}  // namespace teratron
