#include "teratron/kernels/gemm_cpu.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUBlas.h>

#pragma GCC optimize("O3")

namespace teratron::cpu {
namespace {

// The operator behind which oneDNN's linear layer stands for torch.compile.
using Linear = at::Tensor(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias,
                          std::string_view post_op, c10::List<std::optional<at::Scalar>> scalars,
                          std::optional<std::string_view> algorithm);

std::optional<c10::OperatorHandle> find_linear() {
  return c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
}

bool is_matrix(const at::Tensor& x, at::ScalarType type) {
  return x.is_cpu() && x.scalar_type() == type && x.dim() == 2 && x.numel() > 0;
}

bool multiplies_bf16() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

constexpr int64_t rows_at_once = 32, columns_at_once = 64;  // of a sum, that one call of the kernel adds to
constexpr int64_t tokens_at_once = 512;

/// Columns [first, first + count) of dy [T, O] as rows of `tokens`, zeros beyond T.
void transpose(const at::Tensor& dy, int64_t first, int64_t count, std::span<at::BFloat16> panel) {
  constexpr int64_t length = 64;  // tokens of a block, which stays in the first cache
  const int64_t T = dy.size(0), O = dy.size(1), tokens = static_cast<int64_t>(panel.size()) / rows_at_once;
  const at::BFloat16* const from = dy.const_data_ptr<at::BFloat16>() + first;
  at::BFloat16 block[rows_at_once][length];
  for (int64_t t = 0; t < tokens; t += length) {
    const int64_t here = std::min(length, tokens - t);
    for (int64_t k = 0; k < here; ++k) {
      const bool is_token = t + k < T;
      for (int64_t c = 0; c < count; ++c) block[c][k] = is_token ? from[(t + k) * O + c] : at::BFloat16(0);
    }
    for (int64_t c = 0; c < count; ++c) std::copy_n(block[c], here, &panel[c * tokens + t]);
  }
}

/// x [T, I] -> [tokens / 2, I, 2]: pairs of tokens side by side, as the instruction multiplies them; zeros beyond T.
at::Tensor in_pairs(const at::Tensor& x, int64_t tokens) {
  const int64_t T = x.size(0), I = x.size(1);
  at::Tensor result = at::empty({tokens / 2, I, 2}, x.options());
  const at::BFloat16* const from = x.const_data_ptr<at::BFloat16>();
  at::BFloat16* const to = result.mutable_data_ptr<at::BFloat16>();
  const std::vector<at::BFloat16> zeros(I, at::BFloat16(0));
  at::parallel_for(0, tokens / 2, 16, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const at::BFloat16* const first = from + 2 * pair * I;
      const at::BFloat16* const second = 2 * pair + 1 < T ? first + I : zeros.data();
      for (int64_t i = 0; i < I; ++i) {
        to[2 * (pair * I + i)] = first[i];
        to[2 * (pair * I + i) + 1] = second[i];
      }
    }
  });
  return result;
}

}  // namespace

bool suits_multiply(const at::Tensor& x, const at::Tensor& w) {
  // Every call brings w into oneDNN's order, which pays from about this many rows on.
  constexpr int64_t least_rows = 128;
  static const bool is_built_in = find_linear().has_value();
  return is_built_in && at::globalContext().userEnabledMkldnn() && is_matrix(x, at::kFloat) &&
         is_matrix(w, at::kFloat) && x.size(0) >= least_rows && x.is_contiguous();
}

at::Tensor multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  static const auto linear = find_linear()->typed<Linear>();
  const at::AutoDispatchBelowADInplaceOrView no_gradient;
  return linear.call(x, w, bias.defined() ? std::optional(bias) : std::nullopt, "none",
                     c10::List<std::optional<at::Scalar>>(), "");
}

bool suits_add_product(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x) {
  const bool fit = is_matrix(sum, at::kFloat) && is_matrix(dy, at::kBFloat16) && is_matrix(x, at::kBFloat16);
  return fit && multiplies_bf16() && at::globalContext().userEnabledMkldnn() && sum.is_contiguous() &&
         dy.is_contiguous() && x.is_contiguous();
}

void add_product(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x, bool add) {
  const int64_t O = dy.size(1), I = x.size(1), tokens = (x.size(0) + 1) / 2 * 2;
  const at::Tensor pairs = in_pairs(x, tokens);
  const at::BFloat16* const b = pairs.const_data_ptr<at::BFloat16>();
  float* const to = sum.mutable_data_ptr<float>();
  at::parallel_for(0, (O + rows_at_once - 1) / rows_at_once, 1, [&](int64_t begin, int64_t end) {
    std::vector<at::BFloat16> panel(rows_at_once * tokens);
    for (int64_t o = begin * rows_at_once; o < std::min(O, end * rows_at_once); o += rows_at_once) {
      const int64_t rows = std::min(rows_at_once, O - o);
      transpose(dy, o, rows, panel);
      for (int64_t i = 0; i < I; i += columns_at_once) {
        const int64_t columns = std::min(columns_at_once, I - i);
        for (int64_t t = 0; t < tokens; t += tokens_at_once) {
          at::native::cpublas::brgemm(rows, columns, std::min(tokens_at_once, tokens - t), tokens, I, I,
                                      add || t > 0, panel.data() + t, b + t * I + 2 * i, to + o * I + i);
        }
      }
    }
    at::native::cpublas::brgemm_release();
  });
}

}  // namespace teratron::cpu
