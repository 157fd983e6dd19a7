// The causal depthwise convolution of launchers.h. A thread has four channels and a run of tokens, and keeps
// the last inputs in registers.
// Bytes: forward reads x and writes y once; backward reads x and dy and writes dx once, beside the W - 1
// tokens after each run.
#include "teratron/kernels/mamba/weight_at.cuh"

namespace teratron::cuda {
namespace {

// Channels of a thread, and its run of tokens.
constexpr int threads = 256, forward_pack = 4, forward_run = 32, backward_pack = 4, backward_run = 64;

__device__ float sigmoid(float x) {
  return fast_rcp(1.0f + fast_exp(-x));
}

/// The channels and the run of this thread.
struct ConvPlace {
  int channel, first, end, batch;
  int64_t run;
  bool valid;

  __device__ ConvPlace(const CausalConv& conv, int pack, int run_length) {
    const int packs = conv.channels / pack, runs = (conv.tokens + run_length - 1) / run_length;
    const int64_t index = blockIdx.x * int64_t{threads} + threadIdx.x;
    run = index / packs;
    channel = static_cast<int>(index % packs) * pack;
    batch = static_cast<int>(run / runs);
    first = static_cast<int>(run % runs) * run_length;
    end = min(first + run_length, conv.tokens);
    valid = batch < conv.batch;
  }
};

template <typename T, int W, bool packed, int pack>
struct ConvWindow {
  const CausalConv& conv;
  int channel, batch;
  float weight[W][pack], bias[pack];
  float x[W][pack];  // x[k]: k tokens before
  int64_t document[W];

  __device__ ConvWindow(const CausalConv& all, const ConvPlace& place)
      : conv(all), channel(place.channel), batch(place.batch) {
#pragma unroll
    for (int i = 0; i < pack; ++i) {
#pragma unroll
      for (int k = 0; k < W; ++k) weight[k][i] = weight_at<T>(conv.weight, (channel + i) * W + k);
      bias[i] = weight_at<T>(conv.bias, channel + i, 0.0f);
    }
#pragma unroll
    for (int k = 1; k < W; ++k) load_input(place.first - k, k - 1);
  }

  __device__ int64_t row(int token) const { return token * int64_t{conv.batch} + batch; }
  __device__ const T* input(int token) const {
    return static_cast<const T*>(conv.x.data) + row(token) * conv.x.stride + channel;
  }
  __device__ int64_t document_of(int token) const {
    if constexpr (packed) return conv.document[row(token)];
    return 0;
  }
  /// To x[k]. What is before the first token belongs to whatever follows it.
  __device__ void load_input(int token, int k) {
    document[k] = document_of(token < 0 ? 0 : token);
    if (token >= 0) return widen(load<pack>(input(token)), x[k]);
    const T* const before = static_cast<const T*>(conv.before);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      const int64_t at = (int64_t{batch} * (W - 1) + W - 1 + token) * conv.channels + channel + i;
      x[k][i] = before == nullptr ? 0.0f : widen(before[at]);
    }
  }
  /// One token on.
  __device__ void advance(int token, const Pack<T, pack>& next) {
#pragma unroll
    for (int k = W - 1; k > 0; --k) {
      document[k] = document[k - 1];
#pragma unroll
      for (int i = 0; i < pack; ++i) x[k][i] = x[k - 1][i];
    }
    document[0] = document_of(token);
    widen(next, x[0]);
  }
  /// Whether the token k before the current one is of its document.
  __device__ bool sees(int k) const { return !packed || document[k] == document[0]; }
  __device__ void convolve(float (&v)[pack]) const {
#pragma unroll
    for (int i = 0; i < pack; ++i) v[i] = bias[i];
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const bool seen = sees(k);
#pragma unroll
      for (int i = 0; i < pack; ++i) v[i] += seen ? weight[W - 1 - k][i] * x[k][i] : 0.0f;
    }
  }
};

template <typename T, int W, bool packed>
__global__ void __launch_bounds__(threads) causal_conv_kernel(CausalConv conv, T* y) {
  constexpr int pack = forward_pack;
  const ConvPlace place(conv, pack, forward_run);
  if (!place.valid) return;
  ConvWindow<T, W, packed, pack> window(conv, place);
  constexpr int flight = 8;  // loads at a time
  for (int start = place.first; start < place.end; start += flight) {
    Pack<T, pack> in[flight];
#pragma unroll
    for (int i = 0; i < flight; ++i) {
      if (start + i < place.end) in[i] = load<pack>(window.input(start + i));
    }
#pragma unroll
    for (int i = 0; i < flight; ++i) {
      if (start + i >= place.end) break;
      window.advance(start + i, in[i]);
      float v[pack];
      window.convolve(v);
#pragma unroll
      for (int c = 0; c < pack; ++c) v[c] *= sigmoid(v[c]);
      store<pack>(y + window.row(start + i) * conv.channels + place.channel, round_to_pack<T>(v));
    }
  }
}

/// Sums of a thread in the backward pass.
template <typename T, int W, bool packed>
struct ConvGradients {
  static constexpr int pack = backward_pack;
  float dx[W][pack] = {};  // dx[k]: of the token k before the current one, not complete below k = W - 1
  float dweight[W][pack] = {}, dbias[pack] = {};

  /// Adds a token, which the window has moved to; `own`: whether it is of this thread's run.
  template <bool own>
  __device__ void add(const ConvWindow<T, W, packed, pack>& window, const Pack<T, pack>& dy) {
    float dv[pack], v[pack];
    widen(dy, dv);
    window.convolve(v);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      const float s = sigmoid(v[i]);
      dv[i] *= s * (1.0f + v[i] * (1.0f - s));
      if constexpr (own) dbias[i] += dv[i];
    }
#pragma unroll
    for (int k = W - 1; k >= 0; --k) {
      const bool seen = window.sees(k);
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        const float d = seen ? dv[i] : 0.0f;
        dx[k][i] = (k > 0 ? dx[k - 1][i] : 0.0f) + d * window.weight[W - 1 - k][i];
        if constexpr (own) dweight[W - 1 - k][i] += d * window.x[k][i];
      }
    }
  }
};

template <typename T, int W, bool packed>
__global__ void __launch_bounds__(threads, 2)
    causal_conv_backward_kernel(CausalConv conv, CausalConvGradient g) {
  constexpr int pack = backward_pack, flight = 4;  // loads at a time
  static_assert(backward_run % flight == 0 && W - 1 <= flight);
  const ConvPlace place(conv, pack, backward_run);
  if (!place.valid) return;
  ConvWindow<T, W, packed, pack> window(conv, place);
  ConvGradients<T, W, packed> sums;
  const int end = min(place.end + W - 1, conv.tokens);
  Pack<T, pack> x[flight], dy[flight];
  const auto load_tokens = [&](int first) {
#pragma unroll
    for (int i = 0; i < flight; ++i) {
      if (first + i >= end) break;
      x[i] = load<pack>(window.input(first + i));
      dy[i] = load<pack>(static_cast<const T*>(g.dy) + window.row(first + i) * conv.channels + place.channel);
    }
  };
  const auto write = [&](int token, const float(&values)[pack]) {
    if (token < place.first) return;
    T* const to = static_cast<T*>(g.dx) + window.row(token) * conv.x.stride + place.channel;
    store<pack>(to, round_to_pack<T>(values));
  };
  load_tokens(place.first);
  for (int start = place.first; start < place.end; start += flight) {
    Pack<T, pack> own_x[flight], own_dy[flight];
#pragma unroll
    for (int i = 0; i < flight; ++i) {
      own_x[i] = x[i];
      own_dy[i] = dy[i];
    }
    load_tokens(start + flight);
#pragma unroll
    for (int i = 0; i < flight; ++i) {
      if (start + i >= place.end) break;
      window.advance(start + i, own_x[i]);
      sums.template add<true>(window, own_dy[i]);
      write(start + i - (W - 1), sums.dx[W - 1]);
    }
  }
  // The tokens after the run, which are in flight.
#pragma unroll
  for (int i = 0; i < W - 1; ++i) {
    if (place.end + i >= end) break;
    window.advance(place.end + i, x[i]);
    sums.template add<false>(window, dy[i]);
    write(place.end + i - (W - 1), sums.dx[W - 1]);
  }
  if (end == conv.tokens) {  // none comes after them
#pragma unroll
    for (int k = 0; k < W - 1; ++k) {
      if (end - 1 - k < place.end) write(end - 1 - k, sums.dx[k]);
    }
  }
  float* const to = g.dweight + place.run * (W + 1) * conv.channels + place.channel;
#pragma unroll
  for (int k = 0; k < W; ++k) store_values(to + k * int64_t{conv.channels}, sums.dweight[k]);
  store_values(to + W * int64_t{conv.channels}, sums.dbias);
}

/// Calls f(T{}, width, whether documents are packed).
template <typename F>
void with_conv(const CausalConv& conv, F&& f) {
  const auto of_width = [&](auto t, auto width) {
    if (conv.document == nullptr) return f(t, width, std::false_type{});
    f(t, width, std::true_type{});
  };
  const auto of_type = [&](auto t) {
    if (conv.width == 4) return of_width(t, std::integral_constant<int, 4>{});
    if (conv.width == 3) return of_width(t, std::integral_constant<int, 3>{});
    of_width(t, std::integral_constant<int, 2>{});
  };
  if (conv.dtype == Dtype::bf16) return of_type(__nv_bfloat16{});
  of_type(__half{});
}

int64_t runs(const CausalConv& conv, int length) {
  return ceil_div(conv.tokens, length) * conv.batch;
}
unsigned blocks(const CausalConv& conv, int pack, int length) {
  return static_cast<unsigned>(ceil_div(runs(conv, length) * (conv.channels / pack), threads));
}

}  // namespace

void causal_conv(const CausalConv& conv, void* y, CUstream_st* stream) {
  with_conv(conv, [&]<typename T, int W, bool packed>(T, std::integral_constant<int, W>,
                                                      std::bool_constant<packed>) {
    causal_conv_kernel<T, W, packed>
        <<<blocks(conv, forward_pack, forward_run), threads, 0, stream>>>(conv, static_cast<T*>(y));
    check_launch("causal_conv");
  });
}

int64_t causal_conv_gradient_rows(const CausalConv& conv) {
  return runs(conv, backward_run);
}

void causal_conv_backward(const CausalConv& conv, const CausalConvGradient& gradient, CUstream_st* stream) {
  with_conv(conv, [&]<typename T, int W, bool packed>(T, std::integral_constant<int, W>,
                                                      std::bool_constant<packed>) {
    causal_conv_backward_kernel<T, W, packed>
        <<<blocks(conv, backward_pack, backward_run), threads, 0, stream>>>(conv, gradient);
    check_launch("causal_conv_backward");
  });
}

}  // namespace teratron::cuda
