#include "teratron/kernels/sampling/choose_tokens.h"

#include <ATen/ATen.h>

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/sampling/launchers.h"

namespace teratron {

at::Tensor choose_tokens(const at::Tensor& logits_RV, const at::Tensor& parameters_R5,
                         const ChooseTokensOptions& options) {
  const int64_t rows = logits_RV.size(0), vocabulary = logits_RV.size(1);
  TERATRON_ASSERT(logits_RV.is_cuda() && logits_RV.stride(1) == 1 && vocabulary > 0 &&
                  vocabulary <= INT32_MAX);
  TERATRON_ASSERT(parameters_R5.scalar_type() == at::kDouble && parameters_R5.is_contiguous() &&
                  parameters_R5.numel() == 5 * rows && parameters_R5.device() == logits_RV.device());
  const at::Tensor out = at::empty({2, rows}, parameters_R5.options());
  const at::Tensor partial = at::empty({rows, cuda::choose_tokens_parts, 4}, parameters_R5.options());
  const bool filters = options.filters && options.samples;
  const auto bytes = [&](size_t size) {
    return filters ? at::empty({rows * static_cast<int64_t>(size)}, out.options().dtype(at::kByte))
                   : at::Tensor();
  };
  const at::Tensor cuts = bytes(sizeof(cuda::TokenCut)), histograms = bytes(sizeof(cuda::TokenHistogram)),
                   ties = bytes(cuda::choose_tokens_parts * sizeof(int));
  cuda::choose_tokens({.logits = logits_RV.const_data_ptr(),
                       .row_stride = logits_RV.stride(0),
                       .rows = static_cast<int>(rows),
                       .vocabulary = static_cast<int>(vocabulary),
                       .dtype = dtype_of(logits_RV),
                       .parameters = parameters_R5.const_data_ptr<double>(),
                       .samples = options.samples,
                       .logprobs = options.logprobs,
                       .partial = partial.mutable_data_ptr<double>(),
                       .out = out.mutable_data_ptr<double>(),
                       .cuts = static_cast<cuda::TokenCut*>(address(cuts)),
                       .histograms = static_cast<cuda::TokenHistogram*>(address(histograms)),
                       .ties = static_cast<int*>(address(ties))},
                      current_stream(logits_RV));
  return out;
}

at::Tensor replace_negative_tokens(const at::Tensor& tokens_R, const at::Tensor& chosen_R) {
  if (!tokens_R.is_cuda()) return at::where(tokens_R.lt(0), chosen_R.to(at::kLong), tokens_R);
  TERATRON_ASSERT(tokens_R.scalar_type() == at::kLong && tokens_R.is_contiguous() &&
                  chosen_R.scalar_type() == at::kDouble && chosen_R.is_contiguous() &&
                  chosen_R.numel() == tokens_R.numel());
  const at::Tensor out = at::empty_like(tokens_R);
  cuda::replace_negative_tokens({.tokens = tokens_R.const_data_ptr<int64_t>(),
                                 .chosen = chosen_R.const_data_ptr<double>(),
                                 .rows = static_cast<int>(tokens_R.numel()),
                                 .out = out.mutable_data_ptr<int64_t>()},
                                current_stream(tokens_R));
  return out;
}

}  // namespace teratron
