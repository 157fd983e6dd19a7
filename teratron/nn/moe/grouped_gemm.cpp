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

at::Tensor GroupedGemm::forward(const at::Tensor& x_RI, const ExpertParameters& weight) const {
  if (ends_.empty()) return at::_grouped_mm(x_RI, as_block(weight).transpose(1, 2), ends_E_);
  const at::Tensor y_RO = at::empty({x_RI.size(0), weight[0]->tensor.size(0)}, x_RI.options());
  for (size_t e = 0; e < weight.size(); ++e) {
    const at::Tensor x = rows_of(x_RI, e);
    if (x.size(0) > 0) linear_forward(x, weight[e]->tensor, at::Tensor(), rows_of(y_RO, e));
  }
  return y_RO;
}

at::Tensor GroupedGemm::input_grad(const at::Tensor& dy_RO, const ExpertParameters& weight) const {
  if (ends_.empty()) return at::_grouped_mm(dy_RO, as_block(weight), ends_E_);
  const at::Tensor dx_RI = at::empty({dy_RO.size(0), weight[0]->tensor.size(1)}, dy_RO.options());
  for (size_t e = 0; e < weight.size(); ++e) {
    const at::Tensor dy = rows_of(dy_RO, e);
    if (dy.size(0) > 0) linear_input_gradient(dy, weight[e]->tensor, rows_of(dx_RI, e));
  }
  return dx_RI;
}

void GroupedGemm::accumulate_weight_grad(const at::Tensor& dy_RO, const at::Tensor& x_RI,
                                         const ExpertParameters& weight) const {
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

at::Tensor as_block(const ExpertParameters& parameters) {
  const at::Tensor first = parameters.front()->tensor.detach();
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> sizes = first.sizes().vec(), strides = first.strides().vec();
  const int64_t step =
      parameters.size() > 1 ? parameters[1]->tensor.storage_offset() - first.storage_offset() : first.numel();
  bool even = step >= first.numel() && first.is_contiguous();
  for (const Parameter* parameter : parameters) {
    const at::Tensor tensor = parameter->tensor.detach();
    even = even && tensor.is_alias_of(first) &&
           tensor.storage_offset() == first.storage_offset() + step * static_cast<int64_t>(tensors.size());
    tensors.push_back(tensor);
  }
  if (!even) return at::stack(tensors);
  sizes.insert(sizes.begin(), static_cast<int64_t>(parameters.size()));
  strides.insert(strides.begin(), step);
  return first.as_strided(sizes, strides);
}

}  // namespace teratron
