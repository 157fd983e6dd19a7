// Carrying pointers to long-lived objects (parameters, groups) from a custom function's forward to its
// backward. The object must outlive the graph: parameters and meshes live as long as the model.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

namespace teratron {

template <typename T>
void save_pointer(torch::autograd::AutogradContext* context, const char* key, const T* pointer) {
  context->saved_data[key] = reinterpret_cast<int64_t>(pointer);
}

template <typename T>
T* saved_pointer(torch::autograd::AutogradContext* context, const char* key) {
  return reinterpret_cast<T*>(context->saved_data[key].toInt());
}

}  // namespace teratron
