#include "teratron/kernels/gemm/gemm_cpu.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cpu/Utils.h>
#include <ATen/native/CPUBlas.h>

#include "teratron/kernels/common/dispatch.h"

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

bool is_recorded(const at::Tensor& x) {
  return at::GradMode::is_enabled() && x.defined() && x.requires_grad();
}

Processor this_processor() {
  const auto told = at::cpu::get_cpu_capabilities();
  const auto has = [&](const char* what) {
    const auto found = told.find(what);
    return found != told.end() && found->second.isBool() && found->second.toBool();
  };
  Processor result{
      .amx_bf16 = has("amx_bf16"), .avx512_bf16 = has("avx512_bf16"), .avx512_fp16 = has("avx512_fp16")};
#ifdef __x86_64__
  result.is_amd = __builtin_cpu_is("amd");
#else
  result.is_x86 = false;
#endif
  return result;
}

HalfProducts half_products_here(at::ScalarType type) {
  static const Processor here = this_processor();
  return half_products(type, here);
}

/// Rows of x from which on the conversions pay.
int64_t least_rows_to_widen(HalfProducts products) {
  return products == HalfProducts::slow ? 64 : 8;
}

bool suits_onednn(const at::Tensor& x, const at::Tensor& w) {
  // Every call brings w into oneDNN's order, which pays from about this many rows on.
  constexpr int64_t least_rows = 128;
  static const bool is_built_in = at::hasMKLDNN() && find_linear().has_value();
  return is_built_in && is_matrix(x, at::kFloat) && is_matrix(w, at::kFloat) && x.is_contiguous() &&
         x.size(0) >= least_rows && at::globalContext().userEnabledMkldnn();
}

bool suits_widening(const at::Tensor& x, const at::Tensor& w) {
  const at::ScalarType type = x.scalar_type();
  if (!is_half(type) || !is_matrix(x, type) || !is_matrix(w, type)) return false;
  const HalfProducts products = half_products_here(type);
  return products != HalfProducts::fast && x.size(0) >= least_rows_to_widen(products);
}

at::Tensor multiply_f32(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  const auto optional_bias = bias.defined() ? std::optional(bias) : std::nullopt;
  if (!suits_onednn(x, w)) return at::linear(x, w, optional_bias);
  static const auto linear = find_linear()->typed<Linear>();
  return linear.call(x, w, optional_bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

/// In f32, some columns at a time, which bounds what is wide for a moment.
at::Tensor multiply_widened(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  constexpr int64_t numbers_at_once = 4 << 20;
  const int64_t O = w.size(0),
                at_once = std::max<int64_t>(64, numbers_at_once / std::max(x.size(0), x.size(1)));
  const at::Tensor y = at::empty({x.size(0), O}, x.options()), wide = x.to(at::kFloat);
  for (int64_t first = 0; first < O; first += at_once) {
    const auto part = [&](const at::Tensor& t, int64_t dim) {
      return t.narrow(dim, first, std::min(at_once, O - first));
    };
    part(y, 1).copy_(multiply_f32(wide, part(w, 0).to(at::kFloat),
                                  bias.defined() ? part(bias, 0).to(at::kFloat) : at::Tensor()));
  }
  return y;
}

// Sizes of a call of the kernel. PyTorch keeps a kernel for every size that it was called with, so tokens are cut into 512s
// and the rest is filled up to a multiple of 64.
constexpr int64_t rows_at_once = 32, columns_at_once = 64, tokens_at_once = 512, least_tokens = 64;

struct Columns {
  int64_t first, count;
};

constexpr int64_t lanes = 8;
using Lanes = uint16_t __attribute__((vector_size(2 * lanes)));

/// Rows of eight bf16 become columns, by three rounds of shuffling neighbours together.
void transpose(std::array<Lanes, lanes>& x) {
  constexpr Lanes low{0, 8, 1, 9, 2, 10, 3, 11}, high{4, 12, 5, 13, 6, 14, 7, 15};
  for (int round = 0; round < 3; ++round) {
    std::array<Lanes, lanes> y;
    for (int64_t i = 0; i < lanes / 2; ++i) {
      y[2 * i] = __builtin_shuffle(x[i], x[i + lanes / 2], low);
      y[2 * i + 1] = __builtin_shuffle(x[i], x[i + lanes / 2], high);
    }
    x = y;
  }
}

/// These columns of dy [T, O] as rows of `tokens`, `tokens_at_once` of each at a time; zeros beyond T and after the columns.
void transpose(const at::Tensor& dy, const Columns& columns, int64_t tokens, std::span<at::BFloat16> panel) {
  const auto [first, count] = columns;
  const int64_t T = dy.size(0), O = dy.size(1);
  const at::BFloat16* const from = dy.const_data_ptr<at::BFloat16>() + first;
  for (int64_t t = 0; t < tokens; t += lanes) {
    at::BFloat16* const to = &panel[t / tokens_at_once * tokens_at_once * rows_at_once + t % tokens_at_once];
    for (int64_t c = 0; c < count; c += lanes) {
      std::array<Lanes, lanes> x{};
      if (t + lanes <= T && c + lanes <= count) {
        for (int64_t k = 0; k < lanes; ++k) std::memcpy(&x[k], from + (t + k) * O + c, sizeof(x[k]));
      } else {
        for (int64_t k = 0; k < std::min(lanes, T - t); ++k)
          std::memcpy(&x[k], from + (t + k) * O + c, std::min(lanes, count - c) * sizeof(at::BFloat16));
      }
      transpose(x);
      for (int64_t i = 0; i < lanes; ++i) std::memcpy(to + (c + i) * tokens_at_once, &x[i], sizeof(x[i]));
    }
  }
}

/// x [T, I] -> [tokens / 2, I, 2]: pairs of tokens side by side, as the instruction multiplies them; zeros beyond T.
at::Tensor in_pairs(const at::Tensor& x, int64_t tokens) {
  const int64_t T = x.size(0), I = x.size(1);
  at::Tensor result = at::empty({tokens / 2, I, 2}, x.options());
  const at::BFloat16* const from = x.const_data_ptr<at::BFloat16>();
  at::BFloat16* const to = result.mutable_data_ptr<at::BFloat16>();
  const std::vector<at::BFloat16> zeros(I, at::BFloat16(0));
  const auto token = [&](int64_t t) { return t < T ? from + t * I : zeros.data(); };
  at::parallel_for(0, tokens / 2, 16, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const at::BFloat16 *const first = token(2 * pair), *const second = token(2 * pair + 1);
      for (int64_t i = 0; i < I; ++i) {
        to[2 * (pair * I + i)] = first[i];
        to[2 * (pair * I + i) + 1] = second[i];
      }
    }
  });
  return result;
}

}  // namespace

HalfProducts half_products(at::ScalarType type, const Processor& processor) {
  TERATRON_ASSERT(is_half(type), "{}", at::toString(type));
  using enum HalfProducts;
  if (!processor.is_x86) return fast;
  if (type == at::kHalf) return processor.avx512_fp16 ? fast : emulated;
  if (processor.amx_bf16) return fast;
  if (!processor.avx512_bf16) return emulated;
  return processor.is_amd ? fast : slow;
}

at::Tensor widened_where_emulated(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  const bool emulated = x.is_cpu() && is_half(type) && half_products_here(type) == HalfProducts::emulated;
  return emulated ? x.to(at::kFloat) : x;
}

bool suits_multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  if (is_recorded(x) || is_recorded(w) || is_recorded(bias)) return false;
  return suits_onednn(x, w) || suits_widening(x, w);
}

at::Tensor multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  TERATRON_ASSERT(x.size(1) == w.size(1), "product of [{}, {}] by [{}, {}]", x.size(0), x.size(1), w.size(1),
                  w.size(0));
  if (bias.defined()) require_like(bias, x, w.size(0), "bias");  // oneDNN's operator takes it for contiguous
  TERATRON_ASSERT(
      x.scalar_type() == w.scalar_type() && (x.scalar_type() == at::kFloat || is_half(x.scalar_type())),
      "product of {} by {}", at::toString(x.scalar_type()), at::toString(w.scalar_type()));
  const at::AutoDispatchBelowADInplaceOrView no_gradient;
  return x.scalar_type() == at::kFloat ? multiply_f32(x, w, bias) : multiply_widened(x, w, bias);
}

bool has_add_product() {
  if (!at::hasMKLDNN()) return false;
  const std::array<at::BFloat16, 4> ones{1, 1, 1, 1};
  std::array<float, 4> sum{};
  try {
    at::native::cpublas::brgemm(2, 2, 2, 2, 2, 2, false, ones.data(), ones.data(), sum.data());
    at::native::cpublas::brgemm_release();
  } catch (const std::exception&) {
    return false;
  }
  return sum[0] == 2;
}

bool suits_add_product(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x) {
  const bool fit = is_matrix(sum, at::kFloat) && is_matrix(dy, at::kBFloat16) && is_matrix(x, at::kBFloat16);
  const bool contiguous = sum.is_contiguous() && dy.is_contiguous() && x.is_contiguous();
  if (!fit || !contiguous || !at::globalContext().userEnabledMkldnn()) return false;
  static const bool pays = half_products_here(at::kBFloat16) == HalfProducts::fast && has_add_product();
  return pays;
}

void add_product(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x, bool add) {
  const int64_t T = x.size(0), O = dy.size(1), I = x.size(1);
  TERATRON_ASSERT(dy.size(0) == T && sum.size(0) == O && sum.size(1) == I,
                  "sum [{}, {}] of [{}, {}] by [{}, {}]", sum.size(0), sum.size(1), O, dy.size(0), T, I);
  const int64_t tokens = (T + least_tokens - 1) / least_tokens * least_tokens;
  const int64_t room = (tokens + tokens_at_once - 1) / tokens_at_once * tokens_at_once;
  const at::Tensor pairs = in_pairs(x, tokens);
  const at::BFloat16* const b = pairs.const_data_ptr<at::BFloat16>();
  float* const to = sum.mutable_data_ptr<float>();
  at::parallel_for(0, (O + rows_at_once - 1) / rows_at_once, 1, [&](int64_t begin, int64_t end) {
    std::vector<at::BFloat16> panel(rows_at_once * room);
    for (int64_t o = begin * rows_at_once; o < std::min(O, end * rows_at_once); o += rows_at_once) {
      const int64_t rows = std::min(rows_at_once, O - o);
      transpose(dy, {o, rows}, tokens, panel);
      for (int64_t i = 0; i < I; i += columns_at_once) {
        const int64_t columns = std::min(columns_at_once, I - i);
        for (int64_t t = 0; t < tokens; t += tokens_at_once) {
          at::native::cpublas::brgemm(rows, columns, std::min(tokens_at_once, tokens - t), tokens_at_once, I,
                                      I, add || t > 0, panel.data() + t * rows_at_once, b + t * I + 2 * i,
                                      to + o * I + i);
        }
      }
    }
    at::native::cpublas::brgemm_release();
  });
}

}  // namespace teratron::cpu
