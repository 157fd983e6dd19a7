#include "teratron/nn/moe/grouped_gemm.h"

#include "teratron/kernels/gemm/gemm.h"
#include "teratron/kernels/grouped_gemm/grouped_gemm.h"
#include "teratron/nn/moe/host_copy.h"

namespace teratron {

namespace {

// [N, ...]: a view, if these contiguous tensors are evenly spaced in one storage; else undefined.
at::Tensor view_as_block(const std::vector<at::Tensor>& tensors) {
  const at::Tensor& first = tensors.front();
  const int64_t step =
      tensors.size() > 1 ? tensors[1].storage_offset() - first.storage_offset() : first.numel();
  if (step < first.numel() || !first.is_contiguous()) return {};
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].is_alias_of(first) ||
        tensors[i].storage_offset() != first.storage_offset() + step * static_cast<int64_t>(i))
      return {};
  }
  std::vector<int64_t> sizes = first.sizes().vec(), strides = first.strides().vec();
  sizes.insert(sizes.begin(), static_cast<int64_t>(tensors.size()));
  strides.insert(strides.begin(), step);
  return first.as_strided(sizes, strides);
}

// main_grad of all experts, if one kernel can accumulate into them; else undefined.
at::Tensor gradient_block(const ExpertParameters& weight) {
  std::vector<at::Tensor> gradients;
  for (const Parameter* parameter : weight) {
    if (!parameter->main_grad.defined() || parameter->main_grad.scalar_type() != at::kFloat ||
        parameter->grad_is_stale != weight.front()->grad_is_stale)
      return {};
    gradients.push_back(parameter->main_grad);
  }
  return view_as_block(gradients);
}

}  // namespace

GroupedGemm::GroupedGemm(const at::Tensor& ends_E, const at::Tensor& rows)
    : ends_E_(ends_E), rows_(rows.size(0)) {
  if (rows.is_cuda() && rows.scalar_type() == at::kBFloat16) return;
  const at::Tensor ends = HostCopy(ends_E).wait().to(at::kLong);
  ends_.assign(ends.const_data_ptr<int64_t>(), ends.const_data_ptr<int64_t>() + ends.numel());
}

const Fp8Groups& GroupedGemm::fp8_groups() const {
  if (!fp8_groups_) fp8_groups_ = make_fp8_groups(ends_E_, rows_);
  return *fp8_groups_;
}

at::Tensor GroupedGemm::rows_of(const at::Tensor& x, size_t expert) const {
  const int64_t begin = expert == 0 ? 0 : ends_[expert - 1];
  return x.narrow(0, begin, ends_[expert] - begin);
}

ExpertWeights weights_of(const ExpertParameters& parameters) {
  ExpertWeights weights;
  for (const Parameter* parameter : parameters) weights.push_back(parameter->tensor.detach());
  return weights;
}

at::Tensor GroupedGemm::forward(const at::Tensor& x_RI, const ExpertWeights& weight) const {
  if (ends_.empty()) {
    const at::Tensor w_EOI = as_block(weight);
    if (fits_grouped_gemm(x_RI, w_EOI)) return grouped_gemm_forward(x_RI, w_EOI, ends_E_);
    return at::_grouped_mm(x_RI, w_EOI.transpose(1, 2), ends_E_);
  }
  const at::Tensor y_RO = at::empty({x_RI.size(0), weight[0].size(0)}, x_RI.options());
  for (size_t e = 0; e < weight.size(); ++e) {
    const at::Tensor x = rows_of(x_RI, e);
    if (x.size(0) > 0) linear_forward(x, weight[e], at::Tensor(), rows_of(y_RO, e));
  }
  return y_RO;
}

at::Tensor GroupedGemm::input_grad(const at::Tensor& dy_RO, const ExpertWeights& weight) const {
  if (ends_.empty()) {
    const at::Tensor w_EOI = as_block(weight);
    if (fits_grouped_gemm(dy_RO, w_EOI)) return grouped_gemm_input_gradient(dy_RO, w_EOI, ends_E_);
    return at::_grouped_mm(dy_RO, w_EOI, ends_E_);
  }
  const at::Tensor dx_RI = at::empty({dy_RO.size(0), weight[0].size(1)}, dy_RO.options());
  for (size_t e = 0; e < weight.size(); ++e) {
    const at::Tensor dy = rows_of(dy_RO, e);
    if (dy.size(0) > 0) linear_input_gradient(dy, weight[e], rows_of(dx_RI, e));
  }
  return dx_RI;
}

at::Tensor GroupedGemm::weight_grads(const at::Tensor& dy_RO, const at::Tensor& x_RI, int64_t experts) const {
  const at::ScalarType wide = main_grad_dtype(x_RI.scalar_type());
  const at::TensorOptions options = x_RI.options().dtype(wide);
  const std::vector<int64_t> sizes = {experts, dy_RO.size(1), x_RI.size(1)};
  if (ends_.empty()) {
    const at::Tensor dw_EOI = at::empty(sizes, options);
    write_on_device(dw_EOI, dy_RO, x_RI, /*add=*/false);
    return dw_EOI;
  }
  const at::Tensor dw_EOI = at::zeros(sizes, options);
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
    const at::Tensor dy = rows_of(dy_RO, e);
    if (dy.size(0) > 0)
      linear_weight_gradient_(dw_EOI.select(0, static_cast<int64_t>(e)), dy, rows_of(x_RI, e), /*add=*/false);
  }
  return dw_EOI;
}

void GroupedGemm::accumulate_weight_grad(const at::Tensor& dy_RO, const at::Tensor& x_RI,
                                         const ExpertParameters& weight) const {
  if (!weight.front()->options.trainable) return count_grads(weight);
  if (ends_.empty()) {
    return accumulate_block(
        weight, [&](const at::Tensor& sum_EOI, bool add) { write_on_device(sum_EOI, dy_RO, x_RI, add); });
  }
  for (size_t e = 0; e < weight.size(); ++e) {
    const at::Tensor dy = rows_of(dy_RO, e);
    accumulate_grad(*weight[e], [&](const at::Tensor& sum, bool add) {
      if (dy.size(0) > 0) {
        linear_weight_gradient_(sum, dy, rows_of(x_RI, e), add);
      } else if (!add) {
        sum.zero_();
      }
    });
  }
}

void GroupedGemm::write_on_device(const at::Tensor& dw_EOI, const at::Tensor& dy_RO, const at::Tensor& x_RI,
                                  bool add) const {
  if (fits_weight_gradient(dw_EOI, dy_RO, x_RI))
    return grouped_gemm_weight_gradient_(dw_EOI, dy_RO, x_RI, ends_E_, add);
  const at::Tensor product = at::_grouped_mm(dy_RO.t(), x_RI, ends_E_);
  if (add) {
    dw_EOI.add_(product);
  } else {
    dw_EOI.copy_(product);
  }
}

void count_grads(const ExpertParameters& weight) {
  for (Parameter* parameter : weight) accumulate_grad(*parameter, [](const at::Tensor&, bool) {});
}

void accumulate_block(const ExpertParameters& weight,
                      c10::function_ref<void(const at::Tensor& sum, bool add)> write) {
  if (const at::Tensor main_grad = gradient_block(weight); main_grad.defined()) {
    write(main_grad, !weight.front()->grad_is_stale);
    return count_grads(weight);
  }
  std::vector<int64_t> sizes = weight.front()->tensor.sizes().vec();
  sizes.insert(sizes.begin(), std::ssize(weight));
  const at::Tensor& like = weight.front()->tensor;
  const at::Tensor block = at::empty(sizes, like.options().dtype(main_grad_dtype(like.scalar_type())));
  write(block, false);
  for (size_t e = 0; e < weight.size(); ++e)
    accumulate_grad(*weight[e], block.select(0, static_cast<int64_t>(e)));
}

at::Tensor as_block(const ExpertWeights& weights) {
  const at::Tensor view = view_as_block(weights);
  return view.defined() ? view : at::stack(weights);
}

}  // namespace teratron
