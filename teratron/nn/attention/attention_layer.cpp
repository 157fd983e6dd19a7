#include "teratron/nn/attention/attention_layer.h"

#include "teratron/base/error.h"
#include "teratron/nn/attention/alibi.h"
#include "teratron/nn/attention/paged_attention.h"
#include "teratron/nn/attention/relative_position.h"
#include "teratron/nn/attention/rope.h"

namespace teratron {

namespace {

// A projection of hidden states to `heads` vectors of a head's width.
LinearOptions head_projection(const AttentionLayerOptions& options, int64_t heads) {
  return {.in = options.hidden,
          .out = heads * options.kv_channels,
          .bias = options.qkv_bias,
          .init = options.qkv_init};
}

// linear_qkv: for each query group its queries and their gates, a key and a value.
LinearOptions qkv_projection(const AttentionLayerOptions& options) {
  const int64_t of_query = options.output_gate ? 2 : 1;
  LinearOptions linear = head_projection(options, of_query * options.heads + 2 * options.query_groups);
  const int64_t queries = of_query * options.heads / options.query_groups * options.kv_channels;
  linear.parts = {
      {"linear_q", queries}, {"linear_k", options.kv_channels}, {"linear_v", options.kv_channels}};
  linear.group = {queries, 2 * options.kv_channels};
  return linear;
}

LinearOptions kv_projection(const AttentionLayerOptions& options) {
  LinearOptions linear = head_projection(options, 2 * options.query_groups);
  linear.parts = {{"linear_k", options.kv_channels}, {"linear_v", options.kv_channels}};
  linear.group = {0, 2 * options.kv_channels};
  return linear;
}

LinearOptions output_projection(const AttentionLayerOptions& options) {
  return {.in = options.heads * options.kv_channels,
          .out = options.hidden,
          .bias = options.bias,
          .init = options.output_init};
}

const KeyValuePages& pages_of(LayerState& state) {
  return static_cast<AttentionState&>(state).pages();
}

// [S, B, G, 2 N + 2, D] of a projection with gates -> without them [S, B, G, N + 2, D], and the gates
// [S, B, G N D].
std::pair<at::Tensor, at::Tensor> split_gate(const at::Tensor& all_SBGPD) {
  const int64_t queries = all_SBGPD.size(3) / 2 - 1;
  return {at::cat({all_SBGPD.narrow(3, 0, queries), all_SBGPD.narrow(3, 2 * queries, 2)}, 3),
          all_SBGPD.narrow(3, queries, queries).flatten(2)};
}

// In fp32, as Megatron-LM does.
at::Tensor gated(const at::Tensor& x_SBF, const at::Tensor& gate_SBF) {
  if (!gate_SBF.defined()) return x_SBF;
  const at::ScalarType wide = at::promote_types(x_SBF.scalar_type(), at::kFloat);
  return (x_SBF * gate_SBF.to(wide).sigmoid()).to(x_SBF.scalar_type());
}

}  // namespace

CoreAttention::CoreAttention(const AttentionLayerOptions& options, const Scope& scope, const Group& group)
    : options_(options), tensors_(scope.options().tensors()), group_(group) {
  if (options.alibi) alibi_slopes_N_ = alibi_slopes(options.heads, group_.rank * heads(), heads(), tensors_);
  if (options.softmax == SoftmaxType::off_by_one) zero_sinks_N_ = at::zeros({heads()}, tensors_);
  if (options.softmax != SoftmaxType::learnable) return;
  sinks_ =
      &(scope / "core_attention")
           .parameter("softmax_offset", {.shard = Shard::split({options.heads}, 0, group.size, group.rank),
                                         .init = options.qkv_init,
                                         .param_group = ParamGroup::no_weight_decay});
}

const RotaryEmbedding* CoreAttention::rope(const LayerContext& context) const {
  if (options_.rope == RopeKind::none) return nullptr;
  return options_.rope == RopeKind::local ? context.local_rope : context.rope;
}

std::unique_ptr<AttentionState> CoreAttention::make_state(LayerState* before) const {
  return std::make_unique<AttentionState>(
      AttentionState::Shape{query_groups(), kv_channels(), v_channels(), tensors_}, before);
}

AttentionRequest CoreAttention::request(const QueryKeyValue& qkv, const LayerContext& context) const {
  return {.q_SBND = qkv.q_SBND,
          .k_SBGD = qkv.k_SBGD,
          .v_SBGD = qkv.v_SBGD,
          .scale = scale(),
          .softcap = options_.softcap,
          .sinks_N = sinks_ ? autograd_tensor(*sinks_) : zero_sinks_N_,
          .mask = options_.mask,
          .window = options_.window,
          .chunk = options_.chunk,
          .alibi_slopes = alibi_slopes_N_,
          .score_divisor = options_.score_divisor,
          .dropout = context.training ? options_.dropout : 0.0,
          .dropout_key = {context.dropout_seed, options_.dropout_site, context.sample_ids_B},
          .dropout_row_ids = context.dropout_row_ids,
          .query_rows_S = context.rows.rows_S,
          .sequence_length = context.rows.total,
          .head_offset = group_.rank * heads(),
          .total_heads = options_.heads,
          .recompute = options_.recompute_core};
}

at::Tensor CoreAttention::forward(const QueryKeyValue& qkv, const Segments& segments,
                                  const LayerContext& context) const {
  AttentionRequest whole = request(qkv, context);
  whole.segments = segments;
  whole.packed = context.packed;
  const int64_t ranks = context.context_parallel.size();
  if (options_.distance_bias)
    whole.distance_bias =
        narrow_bias(context.distance_bias, ranks * qkv.q_SBND.size(0), ranks * qkv.k_SBGD.size(0));
  if (ranks > 1)
    return context_parallel_attention(whole, context.context_parallel, options_.context_parallel_comm);
  return attention(whole);
}

at::Tensor CoreAttention::forward_gathered(const QueryKeyValue& qkv, const Segments& segments,
                                           const LayerContext& context) const {
  AttentionRequest whole = request(qkv, context);
  whole.segments = segments;
  return attention(whole);
}

at::Tensor CoreAttention::forward_paged(const QueryKeyValue& qkv, const KeyValuePages& pages,
                                        const LayerContext& context) const {
  AttentionRequest whole = request(qkv, context);
  if (options_.distance_bias) whole.distance_bias = context.distance_bias;
  return paged_attention(whole, pages, context);
}

at::Tensor CoreAttention::decode(const QkvParts& qkv, const KeyValuePages& pages,
                                 const LayerContext& context) const {
  AttentionRequest whole = request({}, context);
  if (options_.distance_bias) whole.distance_bias = context.distance_bias;
  return paged_decode_attention(qkv, whole, pages, context, rope(context));
}

at::Tensor CoreAttention::forward_cross(const at::Tensor& q_SBND, const KeyValuePages& pages,
                                        const LayerContext& context) const {
  return paged_cross_attention(request({.q_SBND = q_SBND, .k_SBGD = {}, .v_SBGD = {}}, context), pages,
                               context);
}

SelfAttention::SelfAttention(const Scope& scope, const AttentionLayerOptions& options,
                             const TensorParallel& parallel)
    : core_(options, scope, parallel.group),
      temperature_(options.temperature),
      output_gate_(options.output_gate),
      qkv_(scope / "linear_qkv", qkv_projection(options), parallel),
      output_(scope / "linear_proj", output_projection(options), parallel) {
  TERATRON_ASSERT(core_.v_channels() == core_.kv_channels(), "values of another width in one projection");
  if (!options.qk_norm) return;
  const auto norm = [&](const char* name, int64_t heads) {
    return make_head_norm(
        scope / name,
        {*options.qk_norm, heads, options.kv_channels, options.qk_norm_kind, options.qk_norm_weights},
        parallel.group);
  };
  q_norm_ = norm("q_layernorm", options.heads);
  k_norm_ = norm("k_layernorm", options.query_groups);
}

SelfAttention::Projected SelfAttention::project(const at::Tensor& x_SBH, const DropoutArgs& dropout,
                                                const LayerContext& context) {
  if (output_gate_) return project_gated(x_SBH, dropout, context);
  const int64_t groups = core_.query_groups();
  const int64_t per_group = core_.heads() / groups;
  const int64_t width = core_.kv_channels();
  // Without query-key norms, which come before RoPE, the rotation is fused into the projection or its split.
  const RotaryEmbedding* const fused_rope = q_norm_ ? nullptr : core_.rope(context);
  std::optional<QkvRope> rope;
  if (fused_rope && queries_are_view(groups, per_group))
    rope = {fused_rope->rotation(context.rope_rows_SB), per_group + 2, width};
  const auto [qkv_SBF, bias] = qkv_.forward(x_SBH, rope ? &*rope : nullptr, &dropout);
  const at::Tensor qkv_SBGPD = qkv_SBF.unflatten(-1, {groups, per_group + 2, width});
  QueryKeyValue qkv = split_qkv({qkv_SBGPD, bias, rope.has_value()}, fused_rope, context.rope_rows_SB);
  if (q_norm_) position(qkv, context);
  return {std::move(qkv), {}};
}

SelfAttention::Projected SelfAttention::project_gated(const at::Tensor& x_SBH, const DropoutArgs& dropout,
                                                      const LayerContext& context) {
  const int64_t groups = core_.query_groups();
  const at::Tensor all_SBF = apply_bias_grad(qkv_.forward(x_SBH, nullptr, &dropout));
  const auto [qkv_SBGPD, gate_SBF] = split_gate(all_SBF.unflatten(-1, {groups, -1, core_.kv_channels()}));
  const RotaryEmbedding* const rope = q_norm_ ? nullptr : core_.rope(context);
  Projected projected{split_qkv({qkv_SBGPD, nullptr, false}, rope, context.rope_rows_SB), gate_SBF};
  if (q_norm_) position(projected.qkv, context);
  return projected;
}

at::Tensor SelfAttention::tempered(const at::Tensor& q, const LayerContext& context) const {
  if (temperature_.scale == 0.0) return q;
  const auto step = static_cast<double>(temperature_.step);
  const at::Tensor position_SB = context.positions_SB.to(main_grad_dtype(q.scalar_type())) + 1.0;
  const at::Tensor factor_SB = at::log1p(at::floor(position_SB / step)) * temperature_.scale + 1.0;
  const std::vector<int64_t> ones(static_cast<size_t>(q.dim() - 2), 1);
  std::vector<int64_t> shape = factor_SB.sizes().vec();
  shape.insert(shape.end(), ones.begin(), ones.end());
  return (q * factor_SB.view(shape)).to(q.scalar_type());
}

void SelfAttention::position(QueryKeyValue& qkv, const LayerContext& context) {
  qkv.q_SBND = q_norm_->forward(qkv.q_SBND);
  qkv.k_SBGD = k_norm_->forward(qkv.k_SBGD);
  const RotaryEmbedding* const rope = core_.rope(context);
  if (!rope) return;
  qkv.q_SBND = rope->apply(qkv.q_SBND, context.rope_rows_SB);
  qkv.k_SBGD = rope->apply(qkv.k_SBGD, context.rope_rows_SB);
}

at::Tensor SelfAttention::decode(const Normed& x_SBH, const KeyValuePages& pages,
                                 const LayerContext& context) {
  const int64_t groups = core_.query_groups(), per_group = core_.heads() / groups;
  at::Tensor qkv_SBGPD = qkv_.forward_normed(x_SBH).unflatten(-1, {groups, -1, core_.kv_channels()});
  at::Tensor gate_SBF;
  if (output_gate_) std::tie(qkv_SBGPD, gate_SBF) = split_gate(qkv_SBGPD);
  QkvParts qkv = unpack_qkv(qkv_SBGPD);
  if (q_norm_) {
    qkv.q = q_norm_->forward(qkv.q.flatten(2, 3)).unflatten(2, {groups, per_group});
    qkv.k = k_norm_->forward(qkv.k);
  }
  qkv.q = tempered(qkv.q, context);
  return gated(core_.decode(qkv, pages, context), gate_SBF);
}

Hidden SelfAttention::forward_add_residual(const Normed& normed_SBH, const ResidualDropout& residual,
                                           const LayerContext& context, LayerState* state) {
  if (state && decodes_all(context, normed_SBH.sizes()[0]))
    return output_.forward_add_residual(decode(normed_SBH, pages_of(*state), context), residual);
  const at::Tensor x_SBH = normed_SBH.tensor();
  auto [qkv, gate_SBF] = project(x_SBH, residual.dropout, context);
  qkv.q_SBND = tempered(qkv.q_SBND, context);
  const at::Tensor attended = state ? core_.forward_paged(qkv, pages_of(*state), context)
                                    : core_.forward(qkv, context.segments, context);
  return output_.forward_add_residual(gated(attended, gate_SBF), residual);
}

std::unique_ptr<LayerState> SelfAttention::make_state(LayerState* /*before*/) const {
  return core_.make_state();
}

CrossAttention::CrossAttention(const Scope& scope, const AttentionLayerOptions& options,
                               const TensorParallel& parallel)
    : core_(options, scope, parallel.group),
      q_(scope / "linear_q", head_projection(options, options.heads), parallel),
      kv_(scope / "linear_kv", kv_projection(options), parallel),
      output_(scope / "linear_proj", output_projection(options), parallel) {}

// Without queries.
QueryKeyValue CrossAttention::project_memory(const Memory& memory) {
  TERATRON_ASSERT(memory.hidden_SBH.defined(), "cross attention without the output of an encoder");
  const DropoutArgs* const dropout = memory.dropout ? &*memory.dropout : nullptr;
  const at::Tensor kv_SBF = apply_bias_grad(kv_.forward(memory.hidden_SBH, nullptr, dropout));
  const at::Tensor kv_SBG2D = kv_SBF.unflatten(-1, {core_.query_groups(), 2, core_.kv_channels()});
  const std::vector<at::Tensor> parts = kv_SBG2D.unbind(3);
  return {{}, parts[0], parts[1]};
}

at::Tensor CrossAttention::attend(const at::Tensor& q_SBND, const LayerContext& context) {
  QueryKeyValue qkv = project_memory(context.memory);
  qkv.q_SBND = q_SBND;
  if (context.context_parallel.size() == 1) return core_.forward(qkv, context.memory.segments, context);
  qkv.k_SBGD = gather_tokens(qkv.k_SBGD, context.memory.context_parallel);
  qkv.v_SBGD = gather_tokens(qkv.v_SBGD, context.memory.context_parallel);
  return core_.forward_gathered(qkv, context.memory.segments, context);
}

at::Tensor CrossAttention::attend_paged(const at::Tensor& q_SBND, const LayerContext& context,
                                        const KeyValuePages& pages) {
  if (context.memory.hidden_SBH.defined()) {
    const QueryKeyValue source = project_memory(context.memory);
    store_source(source.k_SBGD, source.v_SBGD, pages, context);
  }
  return core_.forward_cross(q_SBND, pages, context);
}

Hidden CrossAttention::forward_add_residual(const Normed& normed_SBH, const ResidualDropout& residual,
                                            const LayerContext& context, LayerState* state) {
  const at::Tensor q_SBF = apply_bias_grad(q_.forward(normed_SBH.tensor(), nullptr, &residual.dropout));
  const at::Tensor q_SBND = q_SBF.unflatten(-1, {core_.heads(), core_.kv_channels()});
  const at::Tensor attended =
      state ? attend_paged(q_SBND, context, pages_of(*state)) : attend(q_SBND, context);
  return output_.forward_add_residual(attended, residual);
}

std::unique_ptr<LayerState> CrossAttention::make_state(LayerState* before) const {
  return core_.make_state(before);
}

}  // namespace teratron
