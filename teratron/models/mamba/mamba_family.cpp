#include <fmt/ranges.h>

#include "teratron/models/gpt/gpt_family.h"
#include "teratron/models/gpt/linear_attention.h"
#include "teratron/models/mamba/hybrid_pattern.h"
#include "teratron/models/mamba/mamba_config.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

constexpr std::string_view pattern_name = "hybrid_layer_pattern";

// The ratios may stand beside a pattern of these parts.
void check_ratios(Validation& v, const std::string& layers) {
  const HybridRatios ratios{v.args.hybrid_attention_ratio, v.args.hybrid_mlp_ratio};
  const auto count = static_cast<int64_t>(layers.size());
  const auto check = [&](std::string_view name, double ratio, int64_t expected, char kind) {
    const auto has = std::ranges::count(layers, kind);
    if (ratio == 0.0 || has == expected) return;
    v.reject(name,
             fmt::format("{} = {} of {} layers is {}, but the pattern has {} '{}'", name, ratio, count,
                         expected, has, kind),
             "Leave it out: the pattern says it");
  };
  check("hybrid_attention_ratio", ratios.attention, ratios.attention_layers(count), hybrid::attention);
  check("hybrid_mlp_ratio", ratios.mlp, ratios.mlp_layers(count), hybrid::mlp);
}

// After a pattern was rejected: a number that no other check rejects.
void derive_any_layers(Validation& v) {
  Arguments& a = v.args;
  const int64_t stages = a.pipeline_model_parallel_size;
  if (!a.num_layers)
    v.derive("num_layers", a.num_layers, stages * a.num_virtual_stages_per_pipeline_rank.value_or(1));
}

// Bars become the layout of the pipeline.
void derive_segments(Validation& v, const std::vector<int64_t>& segments) {
  Arguments& a = v.args;
  const int64_t stages = a.pipeline_model_parallel_size, count = std::ssize(segments);
  if (count == 0) return;
  if (stages == 1) return v.note("without pipeline parallelism, | in the pattern has no effect");
  const int64_t chunks = count / stages;
  const bool fits = count % stages == 0 && a.num_virtual_stages_per_pipeline_rank.value_or(chunks) == chunks;
  if (!fits) {
    derive_any_layers(v);
    const int64_t wanted = stages * a.num_virtual_stages_per_pipeline_rank.value_or(1);
    return v.reject(pattern_name,
                    fmt::format("the pattern has {} segments for {} (virtual) stages of {} pipeline stages",
                                count, wanted, stages),
                    fmt::format("Divide it into {} with |, or leave | out", wanted));
  }
  for (const auto& [name, chosen] :
       {std::pair("num_layers_per_virtual_pipeline_stage",
                  a.num_layers_per_virtual_pipeline_stage.has_value()),
        std::pair("decoder_first_pipeline_num_layers", a.decoder_first_pipeline_num_layers.has_value()),
        std::pair("decoder_last_pipeline_num_layers", a.decoder_last_pipeline_num_layers.has_value()),
        std::pair("pipeline_model_parallel_layout", a.pipeline_model_parallel_layout.has_value())}) {
    if (chosen) return v.reject(name, fmt::format("{} is set beside | in the pattern", name), "Leave it out");
  }
  std::string layout = "E";
  for (int64_t i = 0; i < count; ++i) layout += (i > 0 ? "|" : "") + std::string(segments[i], 't');
  a.num_virtual_stages_per_pipeline_rank.reset();
  v.derive("pipeline_model_parallel_layout", a.pipeline_model_parallel_layout, layout + "L");
}

void derive_layers(Validation& v) {
  Arguments& a = v.args;
  if (!a.hybrid_layer_pattern) {
    if (!a.num_layers) return;
    if (a.hybrid_attention_ratio + a.hybrid_mlp_ratio > 1.0)
      return v.reject("hybrid_mlp_ratio",
                      "hybrid_attention_ratio and hybrid_mlp_ratio are more than 1 together",
                      "Choose smaller ones");
    const HybridRatios ratios{a.hybrid_attention_ratio, a.hybrid_mlp_ratio};
    return v.derive(pattern_name, a.hybrid_layer_pattern, hybrid_layers(*a.num_layers, ratios));
  }
  const HybridPattern pattern = parse_hybrid_pattern(*a.hybrid_layer_pattern);
  for (const Problem& problem : pattern.problems) v.reject(pattern_name, problem.what, problem.fix);
  if (!pattern.problems.empty()) return derive_any_layers(v);
  const int64_t count = std::ssize(pattern.layers);
  if (a.num_layers && *a.num_layers != count)
    v.reject("num_layers",
             fmt::format("num_layers = {}, but the pattern has {} layers", *a.num_layers, count),
             "Leave it out: the pattern says it");
  check_ratios(v, pattern.layers);
  derive_segments(v, pattern.segments);
  a.hybrid_layer_pattern = pattern.layers;
  if (!a.num_layers) v.derive("num_layers", a.num_layers, count);
}

void derive_heads(Validation& v) {
  Arguments& a = v.args;
  if (a.mamba_num_heads || !a.hidden_size) return;
  if (v.divisible({.name = "hidden_size",
                   .value = 2 * *a.hidden_size,
                   .by = "mamba_head_dim",
                   .divisor = a.mamba_head_dim,
                   .reason = "Without --mamba-num-heads there are as many as fit",
                   .what = "2 * hidden_size"}))
    v.derive("mamba_num_heads", a.mamba_num_heads, 2 * *a.hidden_size / a.mamba_head_dim);
}

// Context-parallel ranks divide the heads of a tensor-parallel one.
void check_context(Validation& v, int64_t heads) {
  const Arguments& a = v.args;
  const int64_t tp = a.tensor_model_parallel_size, cp = a.context_parallel_size;
  if (cp == 1 || heads % tp != 0 || a.mamba_num_groups % tp != 0 || heads % a.mamba_num_groups != 0) return;
  const MambaOptions core{.heads = heads / tp, .groups = a.mamba_num_groups / tp};
  if (!passes_states(a, divides_heads(core, cp))) {
    if (divides_heads(core, cp)) return;
  } else {
    const int64_t tokens = a.seq_length.value_or(0) / cp;
    if (a.seq_length && tokens + 1 < a.mamba_conv_kernel)
      v.reject("mamba_conv_kernel",
               fmt::format("the convolution sees {} tokens, but a context-parallel rank has {}",
                           a.mamba_conv_kernel, tokens),
               "Use longer sequences or fewer ranks");
    return;
  }
  v.reject("context_parallel_size",
           fmt::format(
               "{} heads in {} groups of a tensor-parallel rank are not divided by context_parallel_size = "
               "{}: each rank has as many heads, of whole groups or of one",
               core.heads, core.groups, cp),
           "Choose a size that divides the heads, and the groups or their multiples, or leave "
           "--recurrent-cp-comm-type out");
}

void check_heads(Validation& v) {
  const Arguments& a = v.args;
  const std::string layers = a.hybrid_layer_pattern.value_or("");
  if (layers.find(hybrid::delta) != std::string::npos) check_linear_heads(v);
  if (!has_mamba(layers) || !a.mamba_num_heads) return;
  const int64_t tp = a.tensor_model_parallel_size;
  v.divisible({.name = "mamba_num_heads",
               .value = *a.mamba_num_heads,
               .by = "mamba_num_groups",
               .divisor = a.mamba_num_groups,
               .reason = "Groups have the same number of heads"});
  v.divisible({.name = "mamba_num_heads",
               .value = *a.mamba_num_heads,
               .by = "tensor_model_parallel_size",
               .divisor = tp,
               .reason = "Heads are split over tensor-parallel ranks"});
  v.divisible({.name = "mamba_num_groups",
               .value = a.mamba_num_groups,
               .by = "tensor_model_parallel_size",
               .divisor = tp,
               .reason = "Groups are split over tensor-parallel ranks"});
  if (a.mamba_time_step_max && *a.mamba_time_step_max < a.mamba_time_step_min)
    v.reject("mamba_time_step_max", "mamba_time_step_max is below mamba_time_step_min", "Use a larger one");
  check_context(v, *a.mamba_num_heads);
}

void derive_mamba(Validation& v) {
  derive_layers(v);
  derive_heads(v);
  check_heads(v);
}

void check_kinds(const Arguments& args, std::vector<Problem>& problems) {
  const std::string layers = args.hybrid_layer_pattern.value_or("");
  const auto has = [&](char kind) { return layers.find(kind) != std::string::npos; };
  const auto reject = [&](bool wrong, const char* what, const char* flag, const char* fix) {
    if (wrong) problems.push_back({.what = what, .where = flag, .fix = fix});
  };
  reject(has_attention(layers) && !args.num_attention_heads,
         "the pattern has attention, whose heads are not given", "--num-attention-heads",
         "Give their number");
  reject(has(hybrid::experts) && !args.num_experts,
         "the pattern has layers with experts, whose number is not given", "--num-experts",
         "Give it, or use - for MLPs");
  reject(!has(hybrid::experts) && args.num_experts, "the pattern has no layer with experts", "--num-experts",
         "Use E for these layers, or leave it out");
  reject(args.moe_layer_freq != "1", "the pattern says which layers have experts", "--moe-layer-freq",
         "Leave it out");
  reject(args.experimental_attention_variant.has_value() || args.linear_attention_freq.has_value(),
         "the pattern says which layers have linear attention", "--experimental-attention-variant",
         "Use G for these layers");
  reject(args.window_size.has_value(), "hybrid models have no sliding windows", "--window-size",
         "Leave it out");
  reject(args.parallel_residual, "the pattern says which branches are side by side", "--parallel-residual",
         "Use H for Mamba-2 beside attention, or leave it out");
}

// As check_fp8() for the GEMMs of other layers.
void check_fp8_widths(const Arguments& args, std::vector<Problem>& problems) {
  if (!args.fp8 || !args.mamba_num_heads || !has_mamba(args.hybrid_layer_pattern.value_or(""))) return;
  const int64_t d = *args.mamba_num_heads * args.mamba_head_dim, tp = args.tensor_model_parallel_size;
  const int64_t width = 2 * d + 2 * args.mamba_num_groups * args.mamba_state_dim + *args.mamba_num_heads;
  for (const auto& [what, size] :
       {std::pair("rows of in_proj", width), std::pair("columns of out_proj", d)}) {
    if (size % (16 * tp) == 0) continue;
    problems.push_back(
        {.what = fmt::format("{} / tensor_model_parallel_size = {} is not a multiple of 16, which "
                             "FP8 GEMMs require",
                             what, size / tp),
         .where = "--fp8-format",
         .fix = "Choose other sizes of the Mamba layers, or leave it out"});
  }
}

void check_multipliers(const Arguments& args, std::vector<Problem>& problems) {
  const size_t count = args.mamba_multipliers.size();
  if (count != 0 && count != 5)
    problems.push_back({.what = fmt::format("{} factors for the five parts z, x, B, C and dt", count),
                        .where = "--mamba-multipliers",
                        .fix = "Give five, or leave it out"});
  if (args.mlp_gate_multiplier == 1.0) return;
  const bool gated = args.swiglu || args.geglu;
  const bool experts = args.hybrid_layer_pattern.value_or("").find(hybrid::experts) != std::string::npos;
  if (!gated || experts)
    problems.push_back({.what = gated ? "experts have no factor of their gates" : "the MLPs have no gates",
                        .where = "--mlp-gate-multiplier",
                        .fix = "Leave it out, or use MLPs with --swiglu"});
}

void check_mamba(const Arguments& args, std::vector<Problem>& problems) {
  check_decoder(args, problems);
  check_kinds(args, problems);
  check_multipliers(args, problems);
  check_fp8_widths(args, problems);
}

std::string summary_of(const Arguments& args, const GPTConfig& config) {
  const std::string& layers = *args.hybrid_layer_pattern;
  const auto count = [&](char kind) { return std::ranges::count(layers, kind); };
  return fmt::format(
      "Mamba: {} layers ({} Mamba-2, {} gated delta nets, {} attention, {} both, {} MLP, {} experts), hidden "
      "{}, {} heads of {} channels, state {}, vocabulary {}",
      layers.size(), count(hybrid::mamba), count(hybrid::delta), count(hybrid::attention),
      count(hybrid::both), count(hybrid::mlp), count(hybrid::experts), config.hidden,
      args.mamba_num_heads.value(), args.mamba_head_dim, args.mamba_state_dim, config.vocabulary);
}

}  // namespace

Family mamba_family() {
  Family family = gpt_family();
  family.name = "mamba";
  family.summary = "layers of Mamba-2, alone or mixed with attention, MLPs and experts: Mamba-2, Nemotron-H";
  family.example = "--hybrid-layer-pattern M-M*- --hidden-size 256 --num-attention-heads 4 --mock-data";
  family.settings = {.names = {"training", "mamba", "gpt"},
                     .required = {{"num_layers", "the number of layers, or --hybrid-layer-pattern"},
                                  {"hidden_size", "the hidden size of the model"},
                                  {"seq_length", "the sequence length in tokens"}},
                     .derive = derive_mamba};
  family.classifier = nullptr;
  family.check = check_mamba;
  family.plan = [](const Arguments& args, int64_t vocabulary) {
    const GPTConfig config = mamba_config(args, vocabulary);
    ModelPlan plan = gpt_plan(config, gpt_schema(args.seq_length.value_or(0), gpt_masks(args)));
    plan.summary = summary_of(args, config);
    return plan;
  };
  return family;
}

}  // namespace teratron
