#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/nn/attention/backend.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Span {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// One call of ATen's kernel, whose own causal mask is the diagonal from the first query and key on. Every
// query sees at least one of the keys.
struct FlashCall {
  Span samples, queries, keys;
  bool causal = false;
  at::Tensor mask;  // added to the scores; undefined: zeros

  std::optional<at::Tensor> optional_mask() const {
    return mask.defined() ? std::optional(mask) : std::nullopt;
  }
};

// Splits a request into calls: one per segment, but for a causal mask with a window, or with other numbers of
// keys than queries, one per block of queries. The keys that a block sees are a band along the diagonal:
// `band_` [block_, width_ - 1 + block_] masks keys from width_ - 1 before the first query's diagonal on.
class Splitter {
 public:
  Splitter(const AttentionRequest& request, at::ScalarType type) : request_(request) {
    const int64_t keys = request.k_SBGD.size(0);
    width_ = has_window(request) ? request.window : keys;
    block_ = std::clamp<int64_t>(width_, 64, 512);
    options_ = request.q_SBND.options().dtype(type).requires_grad(false);
  }

  std::vector<FlashCall> split() {
    const int64_t batch = request_.q_SBND.size(1), queries = request_.q_SBND.size(0),
                  keys = request_.k_SBGD.size(0);
    if (!request_.segments.defined()) {
      add({.samples = {0, batch}, .queries = {0, queries}, .keys = {0, keys}});
      return std::move(calls_);
    }
    const std::vector<int64_t> q = bounds(request_.segments.cu_seqlens_q, batch * queries),
                               k = bounds(request_.segments.keys(), batch * keys);
    TERATRON_ASSERT(q.size() == k.size(), "{} query and {} key segments", q.size() - 1, k.size() - 1);
    for (size_t i = 0; i + 1 < q.size(); ++i) {
      if (q[i] == q[i + 1] || k[i] == k[i + 1]) continue;
      const int64_t b = q[i] / queries;
      const FlashCall segment{.samples = {b, b + 1},
                              .queries = {q[i] - b * queries, q[i + 1] - b * queries},
                              .keys = {k[i] - b * keys, k[i + 1] - b * keys}};
      TERATRON_ASSERT(segment.queries.end <= queries && segment.keys.begin >= 0 && segment.keys.end <= keys,
                      "segment {} spans two samples", i);
      add(segment);
    }
    return std::move(calls_);
  }

 private:
  static std::vector<int64_t> bounds(const at::Tensor& cu_seqlens, int64_t tokens) {
    TERATRON_ASSERT(cu_seqlens.scalar_type() == at::kInt && cu_seqlens.dim() == 1 &&
                    cu_seqlens.is_contiguous());
    const auto* first = cu_seqlens.const_data_ptr<int32_t>();
    std::vector<int64_t> result(first, first + cu_seqlens.numel());
    TERATRON_ASSERT(result.size() > 1 && result.front() == 0 && result.back() == tokens &&
                        std::is_sorted(result.begin(), result.end()),
                    "bounds of segments over {} tokens", tokens);
    return result;
  }

  void add(FlashCall segment) {
    const int64_t queries = segment.queries.size(), keys = segment.keys.size();
    segment.causal = is_causal(request_);
    if (!segment.causal || (queries == keys && keys <= width_)) {
      calls_.push_back(std::move(segment));
      return;
    }
    // Queries with more keys than themselves before them have no key: their outputs stay zero.
    const int64_t shift = segment.keys.end - segment.queries.end;
    const int64_t first = std::max(segment.queries.begin, segment.keys.begin - shift);
    for (int64_t begin = first; begin < segment.queries.end; begin += block_) {
      const int64_t end = std::min(begin + block_, segment.queries.end);
      FlashCall call{.samples = segment.samples, .queries = {begin, end}};
      call.keys = {std::max(segment.keys.begin, begin + shift - width_ + 1), end + shift};
      if (end - begin > 1) call.mask = band(call, begin + shift - width_ + 1);
      calls_.push_back(std::move(call));
    }
  }

  at::Tensor band(const FlashCall& call, int64_t first_key) {
    if (!band_.defined()) {
      const at::Tensor hidden = at::ones({block_, width_ - 1 + block_}, options_.dtype(at::kBool));
      band_ = at::zeros(hidden.sizes(), options_)
                  .masked_fill_(hidden.triu(0).tril_(width_ - 1).logical_not_(),
                                -std::numeric_limits<double>::infinity());
    }
    return band_.narrow(0, 0, call.queries.size()).narrow(1, call.keys.begin - first_key, call.keys.size());
  }

  const AttentionRequest& request_;
  int64_t width_ = 0;  // keys that a query sees at most
  int64_t block_ = 0;  // queries of a call with a band
  at::TensorOptions options_;
  at::Tensor band_;
  std::vector<FlashCall> calls_;
};

struct FlashCalls : torch::CustomClassHolder {
  std::vector<FlashCall> list;
  double scale = 1.0;
};

// Some heads of one sample of a call.
struct FlashPart {
  const FlashCall& call;
  int64_t sample = 0;
  Span heads;

  at::Tensor of_queries(const at::Tensor& x_BNSD) const { return slice(x_BNSD, call.queries); }
  at::Tensor of_keys(const at::Tensor& x_BNSD) const { return slice(x_BNSD, call.keys); }

 private:
  at::Tensor slice(const at::Tensor& x_BNSD, const Span& tokens) const {
    return x_BNSD.narrow(0, sample, 1)
        .narrow(1, heads.begin, heads.size())
        .narrow(2, tokens.begin, tokens.size());
  }
};

// Every call, in parallel over samples and heads: one parallel region for many short segments.
template <typename Function>
void for_each_part(const FlashCalls& calls, const at::Tensor& q_BNSD, const Function& function) {
  const int64_t heads = q_BNSD.size(1);
  at::parallel_for(0, q_BNSD.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;  // other threads record gradients unless told
    for (int64_t sample = begin / heads; sample * heads < end; ++sample) {
      const int64_t first = sample * heads;
      const Span part{std::max(begin - first, int64_t{0}), std::min(end - first, heads)};
      for (const FlashCall& call : calls.list) {
        if (sample >= call.samples.begin && sample < call.samples.end) function({call, sample, part});
      }
    }
  });
}

// Queries, keys and values with heads first, a key and a value for each query head.
struct FlashInputs {
  at::Tensor q, k, v;
};

FlashInputs inputs_of(const AttentionRequest& request) {
  const int64_t queries = request.q_SBND.size(0);
  const at::Tensor q = upcast_for_gemm(heads_first(request.q_SBND), queries);
  const auto repeated = [&](const at::Tensor& x_SBGD) {
    return repeat_groups(upcast_for_gemm(heads_first(x_SBGD), queries), q.size(1));
  };
  return {q, repeated(request.k_SBGD), repeated(request.v_SBGD)};
}

c10::intrusive_ptr<FlashCalls> calls_of(const AttentionRequest& request, at::ScalarType type) {
  auto calls = c10::make_intrusive<FlashCalls>();
  calls->list = Splitter(request, type).split();
  calls->scale = request.scale;
  return calls;
}

// Outputs and gradients of tokens without a call are zero.
FlashCpuOutput run_forward(const FlashInputs& inputs, const FlashCalls& calls) {
  const auto& [q, k, v] = inputs;
  const at::Tensor y_SBND = at::zeros({q.size(2), q.size(0), q.size(1), q.size(3)}, q.options());
  const at::Tensor y = heads_first(y_SBND);
  const at::Tensor logsumexp = at::full({q.size(0), q.size(1), q.size(2)}, -INFINITY,
                                        q.options().dtype(at::toOpMathType(q.scalar_type())));
  for_each_part(calls, q, [&](const FlashPart& part) {
    const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        part.of_queries(q), part.of_keys(k), part.of_keys(v), 0.0, part.call.causal,
        part.call.optional_mask(), calls.scale);
    part.of_queries(y).copy_(out);
    part.of_queries(logsumexp).copy_(sums);
  });
  return {y_SBND, logsumexp};
}

FlashInputs run_backward(const FlashInputs& inputs, const FlashCalls& calls, const FlashCpuOutput& output,
                         const at::Tensor& dy_SBND) {
  const auto& [q, k, v] = inputs;
  const at::Tensor y = heads_first(output.y_SBND), dy = heads_first(dy_SBND);
  const FlashInputs d{at::zeros_like(q), at::zeros_like(k), at::zeros_like(v)};
  for_each_part(calls, q, [&](const FlashPart& part) {
    const auto [dq_part, dk_part, dv_part] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        part.of_queries(dy), part.of_queries(q), part.of_keys(k), part.of_keys(v), part.of_queries(y),
        part.of_queries(output.logsumexp_BNS), 0.0, part.call.causal, part.call.optional_mask(), calls.scale);
    part.of_queries(d.q).copy_(dq_part);
    part.of_keys(d.k).add_(dk_part);
    part.of_keys(d.v).add_(dv_part);
  });
  return d;
}

struct FlashCpu : torch::autograd::Function<FlashCpu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const c10::intrusive_ptr<FlashCalls>& calls) {
    const FlashCpuOutput output = run_forward({q, k, v}, *calls);
    context->save_for_backward({q, k, v, output.y_SBND, output.logsumexp_BNS});
    context->saved_data["calls"] = c10::IValue::make_capsule(calls);
    return output.y_SBND.flatten(2);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dy_SBND = gradients[0].contiguous().view(saved[3].sizes());
    const auto holder = context->saved_data["calls"].toCapsule();
    const FlashInputs d =
        run_backward({saved[0], saved[1], saved[2]}, static_cast<const FlashCalls&>(*holder),
                     {saved[3], saved[4]}, dy_SBND);
    return {d.q, d.k, d.v, at::Tensor()};
  }
};

// [B, N, S, D] of repeated heads as [S, B, G, D], summed over each group.
at::Tensor sum_groups(const at::Tensor& x_BNSD, int64_t groups) {
  const int64_t heads = x_BNSD.size(1);
  const at::Tensor x = heads == groups ? x_BNSD : x_BNSD.unflatten(1, {groups, heads / groups}).sum(2);
  return x.permute({2, 0, 1, 3});
}

}  // namespace

at::Tensor flash_cpu(const AttentionRequest& request) {
  const int64_t queries = request.q_SBND.size(0);
  const auto [q, k, v] = inputs_of(request);
  const c10::intrusive_ptr<FlashCalls> calls = calls_of(request, q.scalar_type());
  const int64_t samples = q.size(0);
  const auto is_whole = [samples, queries](const FlashCall& call) {
    return call.samples.size() == samples && call.queries.size() == queries;
  };
  if (calls->list.size() != 1 || !is_whole(calls->list[0])) {
    return FlashCpu::apply(q, k, v, calls).to(request.q_SBND.scalar_type());
  }
  const FlashCall& whole = calls->list[0];
  const at::Tensor y_BNSD = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
      q, k.narrow(2, whole.keys.begin, whole.keys.size()), v.narrow(2, whole.keys.begin, whole.keys.size()),
      0.0, whole.causal, whole.optional_mask(), request.scale));
  return merge_heads(y_BNSD.to(request.q_SBND.scalar_type()));
}

FlashCpuOutput flash_cpu_forward(const AttentionRequest& request) {
  const FlashInputs inputs = inputs_of(request);
  return run_forward(inputs, *calls_of(request, inputs.q.scalar_type()));
}

QueryKeyValue flash_cpu_backward(const AttentionRequest& request, const FlashCpuOutput& output,
                                 const at::Tensor& dy_SBND) {
  const FlashInputs inputs = inputs_of(request);
  const at::ScalarType type = inputs.q.scalar_type();
  const FlashInputs d = run_backward(inputs, *calls_of(request, type),
                                     {output.y_SBND.to(type), output.logsumexp_BNS}, dy_SBND.to(type));
  const int64_t groups = request.k_SBGD.size(2);
  return {d.q.permute({2, 0, 1, 3}), sum_groups(d.k, groups), sum_groups(d.v, groups)};
}

}  // namespace teratron
