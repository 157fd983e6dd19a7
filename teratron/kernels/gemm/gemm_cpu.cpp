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

namespace teratron::cpu {
namespace {

// oneDNN's linear layer, which ATen registers for torch.compile.
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

CpuFeatures this_cpu() {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto has = [&](const char* name) {
    const auto found = capabilities.find(name);
    return found != capabilities.end() && found->second.isBool() && found->second.toBool();
  };
  CpuFeatures result{
      .amx_bf16 = has("amx_bf16"), .avx512_bf16 = has("avx512_bf16"), .avx512_fp16 = has("avx512_fp16")};
#ifdef __x86_64__
  result.is_amd = __builtin_cpu_is("amd");
#else
  result.is_x86 = false;
#endif
  return result;
}

/// Rows of x above which the conversions pay off.
int64_t min_rows_to_upcast(HalfGemm speed) {
  return speed == HalfGemm::slow ? 64 : 8;
}

bool use_onednn(const at::Tensor& x, const at::Tensor& w) {
  // Each call reorders w to oneDNN's format, which pays off from about this many rows.
  constexpr int64_t min_rows = 128;
  static const bool is_built_in = at::hasMKLDNN() && find_linear().has_value();
  return is_built_in && is_matrix(x, at::kFloat) && is_matrix(w, at::kFloat) && x.is_contiguous() &&
         x.size(0) >= min_rows && at::globalContext().userEnabledMkldnn();
}

bool use_upcast(const at::Tensor& x, const at::Tensor& w) {
  const at::ScalarType type = x.scalar_type();
  if (!is_half(type) || !is_matrix(x, type) || !is_matrix(w, type)) return false;
  const HalfGemm speed = half_gemm_here(type);
  return speed != HalfGemm::fast && x.size(0) >= min_rows_to_upcast(speed);
}

at::Tensor linear_f32(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  const auto optional_bias = bias.defined() ? std::optional(bias) : std::nullopt;
  if (!use_onednn(x, w)) return at::linear(x, w, optional_bias);
  static const auto op = find_linear()->typed<Linear>();
  return op.call(x, w, optional_bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

/// In f32, by chunks of columns to bound the temporary f32 weights.
at::Tensor linear_upcast(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  constexpr int64_t max_chunk_elements = 4 << 20;
  const int64_t O = w.size(0),
                chunk = std::max<int64_t>(64, max_chunk_elements / std::max(x.size(0), x.size(1)));
  const at::Tensor y = at::empty({x.size(0), O}, x.options()), x_f32 = x.to(at::kFloat);
  for (int64_t first = 0; first < O; first += chunk) {
    const auto part = [&](const at::Tensor& t, int64_t dim) {
      return t.narrow(dim, first, std::min(chunk, O - first));
    };
    part(y, 1).copy_(linear_f32(x_f32, part(w, 0).to(at::kFloat),
                                bias.defined() ? part(bias, 0).to(at::kFloat) : at::Tensor()));
  }
  return y;
}

// Block sizes of a brgemm call. PyTorch caches a kernel per size, so tokens are cut into blocks of 512, and
// the remainder is padded to a multiple of 64.
constexpr int64_t row_block = 32, column_block = 64, token_block = 512, token_multiple = 64;

struct Columns {
  int64_t first, count;
};

constexpr int64_t lanes = 8;
using Lanes = uint16_t __attribute__((vector_size(2 * lanes)));

/// Transposes 8 x 8 bf16 by three rounds of interleaving.
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

/// Columns of dy [T, O] to rows of `tokens`, in blocks of token_block; zeros beyond T and after the last
/// column.
void transpose(const at::Tensor& dy, const Columns& columns, int64_t tokens, std::span<at::BFloat16> panel) {
  const auto [first, count] = columns;
  const int64_t T = dy.size(0), O = dy.size(1);
  const at::BFloat16* const from = dy.const_data_ptr<at::BFloat16>() + first;
  for (int64_t t = 0; t < tokens; t += lanes) {
    at::BFloat16* const to = &panel[t / token_block * token_block * row_block + t % token_block];
    for (int64_t c = 0; c < count; c += lanes) {
      std::array<Lanes, lanes> x{};
      if (t + lanes <= T && c + lanes <= count) {
        for (int64_t k = 0; k < lanes; ++k) std::memcpy(&x[k], from + (t + k) * O + c, sizeof(x[k]));
      } else {
        for (int64_t k = 0; k < std::min(lanes, T - t); ++k)
          std::memcpy(&x[k], from + (t + k) * O + c, std::min(lanes, count - c) * sizeof(at::BFloat16));
      }
      transpose(x);
      for (int64_t i = 0; i < lanes; ++i) std::memcpy(to + (c + i) * token_block, &x[i], sizeof(x[i]));
    }
  }
}

/// x [T, I] -> [tokens / 2, I, 2]: interleaved pairs of tokens (VNNI format); zeros beyond T.
at::Tensor pack_vnni(const at::Tensor& x, int64_t tokens) {
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

HalfGemm half_gemm_speed(at::ScalarType type, const CpuFeatures& cpu) {
  TERATRON_ASSERT(is_half(type), "{}", at::toString(type));
  using enum HalfGemm;
  if (!cpu.is_x86) return fast;
  if (type == at::kHalf) return cpu.avx512_fp16 ? fast : emulated;
  if (cpu.amx_bf16) return fast;
  if (!cpu.avx512_bf16) return emulated;
  return cpu.is_amd ? fast : slow;
}

HalfGemm half_gemm_here(at::ScalarType type) {
  static const CpuFeatures here = this_cpu();
  return half_gemm_speed(type, here);
}

at::Tensor upcast_if_emulated(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  const bool emulated = x.is_cpu() && is_half(type) && half_gemm_here(type) == HalfGemm::emulated;
  return emulated ? x.to(at::kFloat) : x;
}

bool use_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  if (is_recorded(x) || is_recorded(w) || is_recorded(bias)) return false;
  return use_onednn(x, w) || use_upcast(x, w);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  TERATRON_ASSERT(x.size(1) == w.size(1), "product of [{}, {}] by [{}, {}]", x.size(0), x.size(1), w.size(1),
                  w.size(0));
  if (bias.defined()) require_like(bias, x, w.size(0), "bias");  // assumed by oneDNN's operator
  TERATRON_ASSERT(
      x.scalar_type() == w.scalar_type() && (x.scalar_type() == at::kFloat || is_half(x.scalar_type())),
      "product of {} by {}", at::toString(x.scalar_type()), at::toString(w.scalar_type()));
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return x.scalar_type() == at::kFloat ? linear_f32(x, w, bias) : linear_upcast(x, w, bias);
}

bool has_brgemm() {
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

bool use_weight_gradient(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x) {
  const bool fit = is_matrix(sum, at::kFloat) && is_matrix(dy, at::kBFloat16) && is_matrix(x, at::kBFloat16);
  const bool contiguous = sum.is_contiguous() && dy.is_contiguous() && x.is_contiguous();
  if (!fit || !contiguous || !at::globalContext().userEnabledMkldnn()) return false;
  static const bool faster = half_gemm_here(at::kBFloat16) == HalfGemm::fast && has_brgemm();
  return faster;
}

void weight_gradient(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x, bool add) {
  const int64_t T = x.size(0), O = dy.size(1), I = x.size(1);
  TERATRON_ASSERT(dy.size(0) == T && sum.size(0) == O && sum.size(1) == I,
                  "sum [{}, {}] of [{}, {}] by [{}, {}]", sum.size(0), sum.size(1), O, dy.size(0), T, I);
  const int64_t tokens = (T + token_multiple - 1) / token_multiple * token_multiple;
  const int64_t capacity = (tokens + token_block - 1) / token_block * token_block;
  const at::Tensor pairs = pack_vnni(x, tokens);
  const at::BFloat16* const b = pairs.const_data_ptr<at::BFloat16>();
  float* const to = sum.mutable_data_ptr<float>();
  at::parallel_for(0, (O + row_block - 1) / row_block, 1, [&](int64_t begin, int64_t end) {
    std::vector<at::BFloat16> panel(row_block * capacity);
    for (int64_t o = begin * row_block; o < std::min(O, end * row_block); o += row_block) {
      const int64_t rows = std::min(row_block, O - o);
      transpose(dy, {o, rows}, tokens, panel);
      for (int64_t i = 0; i < I; i += column_block) {
        const int64_t columns = std::min(column_block, I - i);
        for (int64_t t = 0; t < tokens; t += token_block) {
          at::native::cpublas::brgemm(rows, columns, std::min(token_block, tokens - t), token_block, I, I,
                                      add || t > 0, panel.data() + t * row_block, b + t * I + 2 * i,
                                      to + o * I + i);
        }
      }
    }
    at::native::cpublas::brgemm_release();
  });
}

}  // namespace teratron::cpu
