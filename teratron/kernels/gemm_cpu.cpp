#include "teratron/kernels/gemm_cpu.h"

#include <optional>
#include <string_view>

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace teratron {
namespace {

using Linear = at::Tensor(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias,
                          std::string_view post_op, c10::List<std::optional<at::Scalar>> scalars,
                          std::optional<std::string_view> algorithm);

std::optional<c10::OperatorHandle> find_linear() {
  return c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
}

}  // namespace

bool suits_onednn(const at::Tensor& x, const at::Tensor& w) {
  // Every call brings w into oneDNN's order, which pays from about this many rows on.
  constexpr int64_t least_rows = 128;
  const auto suits = [](const at::Tensor& t) {
    return t.is_cpu() && t.scalar_type() == at::kFloat && t.dim() == 2 && t.numel() > 0;
  };
  static const bool is_built_in = find_linear().has_value();
  return is_built_in && at::globalContext().userEnabledMkldnn() && suits(x) && suits(w) &&
         x.size(0) >= least_rows && x.is_contiguous();
}

at::Tensor multiply_by_onednn(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  static const auto linear = find_linear()->typed<Linear>();
  const at::AutoDispatchBelowADInplaceOrView no_gradient;
  return linear.call(x, w, bias.defined() ? std::optional(bias) : std::nullopt, "none",
                     c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace teratron
