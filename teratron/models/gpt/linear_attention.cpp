#include "teratron/models/gpt/linear_attention.h"

#include "teratron/base/config/layer_pattern.h"
#include "teratron/models/transformer/transformer_branches.h"
#include "teratron/nn/delta/delta_cost.h"
#include "teratron/settings/arguments.h"

namespace teratron {

namespace {

bool divides_linear_heads(const Arguments& args) {
  return args.linear_num_key_heads % (args.tensor_model_parallel_size * args.context_parallel_size) == 0;
}

// A convolution reads tokens of one rank before its own.
void check_convolution(Validation& v) {
  const Arguments& a = v.args;
  if (!passes_states(a, divides_linear_heads(a)) || !a.seq_length) return;
  const int64_t tokens = *a.seq_length / a.context_parallel_size;
  if (tokens + 1 < a.linear_conv_kernel_dim)
    v.reject("linear_conv_kernel_dim",
             fmt::format("the convolution sees {} tokens, but a context-parallel rank has {}",
                         a.linear_conv_kernel_dim, tokens),
             "Use longer sequences or fewer ranks");
}

}  // namespace

bool passes_states(const Arguments& args, bool divides) {
  if (args.context_parallel_size == 1 || args.recurrent_cp_comm_type == "heads") return false;
  return args.recurrent_cp_comm_type == "states" || !divides;
}

DeltaMixerOptions delta_options(const Arguments& args, const TransformerConfig& config) {
  return {.hidden = config.hidden,
          .core = {.key_heads = args.linear_num_key_heads,
                   .value_heads = args.linear_num_value_heads,
                   .key_dim = args.linear_key_head_dim,
                   .value_dim = args.linear_value_head_dim,
                   .beta_scale = args.linear_allow_negative_eigenvalues ? 2.0 : 1.0,
                   .norm_eps = args.linear_norm_epsilon.value_or(config.norm.eps)},
          .conv_kernel = args.linear_conv_kernel_dim,
          .in_init = weight_init(config),
          .out_init = output_init(config),
          .passes_states = passes_states(args, divides_linear_heads(args))};
}

BranchOptions delta_branch(const DeltaMixerOptions& options) {
  return {.norm = "input_layernorm",
          .part = "self_attention",
          .mixer = mixer_factory<DeltaMixer>(options),
          .operators = [options](const std::string& name,
                                 const RankSizes& sizes) { return delta_operators(name, options, sizes); },
          .dropout = attention_output};
}

void add_linear_attention(TransformerConfig& config, const Arguments& args) {
  if (!args.experimental_attention_variant) return;
  const std::vector<int64_t> linear =
      parse_all_but_every(args.linear_attention_freq.value(), config.layers).value();
  const DeltaMixerOptions options = delta_options(args, config);
  config.branches = [=](const TransformerConfig& all, int64_t layer) {
    if (linear.at(layer) == 0) return transformer_branches(all, layer);
    TransformerConfig before = all;
    before.norm_outputs = false;  // OLMo hybrid normalizes the outputs of layers with attention alone
    std::vector<BranchOptions> branches = transformer_branches(before, layer);
    branches.front() = delta_branch(options);
    return branches;
  };
}

void derive_linear_attention(Validation& v) {
  const Arguments& a = v.args;
  if (!a.experimental_attention_variant) {
    if (a.linear_attention_freq)
      v.reject("linear_attention_freq", "linear_attention_freq is set without a kind of linear attention",
               "Add --experimental-attention-variant gdn, or leave it out");
    return;
  }
  if (!a.linear_attention_freq)
    return v.reject("experimental_attention_variant",
                    "linear_attention_freq does not say which layers have it",
                    "Add --linear-attention-freq N (all but every N-th), or a list");
  if (a.num_layers && !parse_all_but_every(*a.linear_attention_freq, *a.num_layers))
    v.reject(
        "linear_attention_freq",
        fmt::format("linear_attention_freq = '{}' is neither a number above 0 nor a list of num_layers = {} "
                    "zeros and ones",
                    printable(*a.linear_attention_freq), *a.num_layers),
        "Use a number N, or a list such as \"([1]*3+[0]*1)*2\"");
  if (a.parallel_residual)
    v.reject("parallel_residual", "layers with linear attention have branches one after the other",
             "Leave it out");
  check_linear_heads(v);
}

void check_linear_heads(Validation& v) {
  const Arguments& a = v.args;
  const bool by_heads = a.context_parallel_size > 1 && a.recurrent_cp_comm_type == "heads";
  v.divisible({.name = "linear_num_value_heads",
               .value = a.linear_num_value_heads,
               .by = "linear_num_key_heads",
               .divisor = a.linear_num_key_heads,
               .reason = "Heads of keys serve the same number of heads of values"});
  v.divisible(
      {.name = "linear_num_key_heads",
       .value = a.linear_num_key_heads,
       .by = by_heads ? "tensor_model_parallel_size * context_parallel_size" : "tensor_model_parallel_size",
       .divisor = a.tensor_model_parallel_size * (by_heads ? a.context_parallel_size : 1),
       .reason = by_heads ? "Heads are split over tensor- and context-parallel ranks, unless "
                            "--recurrent-cp-comm-type is states"
                          : "Heads are split over tensor-parallel ranks"});
  check_convolution(v);
}

}  // namespace teratron
