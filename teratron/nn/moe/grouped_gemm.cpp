#include "teratron/nn/moe/grouped_gemm.h"

#include "teratron/kernels/gemm/gemm.h"

namespace teratron {

GroupedGemm::GroupedGemm(const at::Tensor& ends_E, const at::Tensor& rows) : ends_E_(ends_E) {
  if (rows.is_cuda() && rows.scalar_type() == at::kBFloat16) return;
  const at::Tensor ends = ends_E.to(at::kCPU, at::kLong);
  ends_.assign(ends.const_data_ptr<int64_t>(), ends.const_data_ptr<int64_t>() + ends.numel());
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
  if (ends_.empty()) return at::_grouped_mm(x_RI, as_block(weight).transpose(1, 2), ends_E_);
  const at::Tensor y_RO = at::empty({x_RI.size(0), weight[0].size(0)}, x_RI.options());
  for (size_t e = 0; e < weight.size(); ++e) {
    const at::Tensor x = rows_of(x_RI, e);
    if (x.size(0) > 0) linear_forward(x, weight[e], at::Tensor(), rows_of(y_RO, e));
  }
  return y_RO;
}

at::Tensor GroupedGemm::input_grad(const at::Tensor& dy_RO, const ExpertWeights& weight) const {
  if (ends_.empty()) return at::_grouped_mm(dy_RO, as_block(weight), ends_E_);
  const at::Tensor dx_RI = at::empty({dy_RO.size(0), weight[0].size(1)}, dy_RO.options());
  for (size_t e = 0; e < weight.size(); ++e) {
    const at::Tensor dy = rows_of(dy_RO, e);
    if (dy.size(0) > 0) linear_input_gradient(dy, weight[e], rows_of(dx_RI, e));
  }
  return dx_RI;
}

at::Tensor GroupedGemm::weight_grads(const at::Tensor& dy_RO, const at::Tensor& x_RI, int64_t experts) const {
  const at::ScalarType wide = main_grad_dtype(x_RI.scalar_type());
  if (ends_.empty()) return at::_grouped_mm(dy_RO.t(), x_RI, ends_E_).to(wide);
  const at::Tensor dw_EOI = at::zeros({experts, dy_RO.size(1), x_RI.size(1)}, x_RI.options().dtype(wide));
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
    const at::Tensor dy = rows_of(dy_RO, e);
    if (dy.size(0) > 0)
      linear_weight_gradient_(dw_EOI.select(0, static_cast<int64_t>(e)), dy, rows_of(x_RI, e), /*add=*/false);
  }
  return dw_EOI;
}

void GroupedGemm::accumulate_weight_grad(const at::Tensor& dy_RO, const at::Tensor& x_RI,
                                         const ExpertParameters& weight) const {
  if (!weight.front()->options.trainable) {
    for (Parameter* parameter : weight) accumulate_grad(*parameter, [](const at::Tensor&, bool) {});
    return;
  }
  if (ends_.empty()) {
    const at::Tensor dw_EOI = at::_grouped_mm(dy_RO.t(), x_RI, ends_E_);
    for (size_t e = 0; e < weight.size(); ++e)
      accumulate_grad(*weight[e], dw_EOI.select(0, static_cast<int64_t>(e)));
    return;
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

at::Tensor as_block(const ExpertWeights& weights) {
  const at::Tensor& first = weights.front();
  std::vector<int64_t> sizes = first.sizes().vec(), strides = first.strides().vec();
  const int64_t step =
      weights.size() > 1 ? weights[1].storage_offset() - first.storage_offset() : first.numel();
  bool even = step >= first.numel() && first.is_contiguous();
  for (size_t e = 0; e < weights.size(); ++e) {
    even = even && weights[e].is_alias_of(first) &&
           weights[e].storage_offset() == first.storage_offset() + step * static_cast<int64_t>(e);
  }
  if (!even) return at::stack(weights);
  sizes.insert(sizes.begin(), std::ssize(weights));
  strides.insert(strides.begin(), step);
  return first.as_strided(sizes, strides);
}

}  // namespace teratron
