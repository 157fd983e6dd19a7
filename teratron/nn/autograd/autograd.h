// What a custom autograd function saves in forward for its backward besides saved variables: pointers to
// objects that outlive the graph (parameters, layers), and tensors that backward releases early.
#pragma once

#include <string>

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/kernels/pointwise/dropout.h"
#include "teratron/nn/autograd/saved_tensors.h"

namespace teratron {

template <typename T>
void save_pointer(torch::autograd::AutogradContext* context, const char* key, const T* pointer) {
  context->saved_data[key] = reinterpret_cast<int64_t>(pointer);
}

template <typename T>
T* saved_pointer(torch::autograd::AutogradContext* context, const char* key) {
  return reinterpret_cast<T*>(context->saved_data[key].toInt());
}

/// A tensor as autograd would save it.
class ReleasableTensor : public torch::CustomClassHolder {
 public:
  explicit ReleasableTensor(at::Tensor x) {
    if (x.defined()) hooks_ = SavedTensorScope::make_hooks();
    if (hooks_) {
      hooks_->call_pack_hook(x);
    } else {
      x_ = std::move(x);
    }
  }
  at::Tensor unpack() const { return hooks_ ? hooks_->call_unpack_hook() : x_; }

 private:
  at::Tensor x_;
  std::unique_ptr<SavedTensorScope::Hooks> hooks_;
};

/// Saves x until release(); save_for_backward() would hold it until the end of backward.
inline void save_releasable(torch::autograd::AutogradContext* context, const std::string& key, at::Tensor x) {
  context->saved_data[key] = c10::IValue::make_capsule(c10::make_intrusive<ReleasableTensor>(std::move(x)));
}

inline at::Tensor release(torch::autograd::AutogradContext* context, const std::string& key) {
  const auto entry = context->saved_data.find(key);
  TERATRON_ASSERT(entry != context->saved_data.end(), "{} was released: backward ran twice", key);
  const auto holder = entry->second.toCapsule();
  context->saved_data.erase(entry);
  return static_cast<const ReleasableTensor&>(*holder).unpack();
}

/// Rate and key of a dropout; its rows are a saved variable.
inline void save_dropout(torch::autograd::AutogradContext* context, const Dropout& dropout) {
  context->saved_data["rate"] = dropout.p;
  context->saved_data["seed"] = static_cast<int64_t>(dropout.key.seed);
  context->saved_data["site"] = static_cast<int64_t>(dropout.key.tensor);
}

inline Dropout saved_dropout(torch::autograd::AutogradContext* context, const at::Tensor& rows) {
  return {.p = context->saved_data["rate"].toDouble(),
          .key = {static_cast<uint64_t>(context->saved_data["seed"].toInt()),
                  static_cast<uint64_t>(context->saved_data["site"].toInt())},
          .where = {.rows = rows}};
}

}  // namespace teratron
