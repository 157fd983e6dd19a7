// mamba_core.h against the recurrence, token by token, differentiated by autograd in f64.
#include "teratron/kernels/mamba/mamba_core.h"

#include "teratron/testing/kernels.h"
#include "teratron/testing/tensors/shared_fixtures.h"

namespace teratron {
namespace {

struct MambaCase {
  MambaOptions options;
  int64_t tokens, batch;
  std::vector<std::vector<int64_t>> documents = {};  // of each sequence, lengths; empty: one
  bool conv_bias = true;
};

// Leaves in f64.
struct MambaProblem {
  explicit MambaProblem(const MambaCase& of) : options(of.options) {
    const int64_t h = options.heads, kernel = 4;
    input.zxbcdt_SB = leaf(randn({of.tokens, of.batch, options.width()}));
    weights.conv_weight = leaf(randn({options.channels(), 1, kernel}) * 0.5);
    if (of.conv_bias) weights.conv_bias = leaf(randn({options.channels()}));
    weights.dt_bias = leaf(randn({h}) - 1.0);
    weights.A_log = leaf(randn({h}) * 0.5);
    weights.D = leaf(randn({h}));
    if (options.gate != MambaGate::alone) weights.norm_weight = leaf(randn({options.inner()}));
    input.before.ssm = leaf(randn({of.batch, h, options.head_dim, options.state}));
    dy = f64(randn({of.tokens, of.batch, options.inner()}));
    dssm = f64(randn(input.before.ssm.sizes()));
    if (of.documents.empty()) return;
    input.before.ssm = at::Tensor();
    std::vector<at::Tensor> columns;
    for (const auto& lengths : of.documents)
      columns.push_back(
          at::repeat_interleave(at::arange(std::ssize(lengths)), at::tensor(lengths, at::kLong)));
    input.document_SB = at::stack(columns, 1);
  }
  MambaOptions options;
  MambaInput input;
  MambaWeights weights;
  at::Tensor dy, dssm;
};

struct MambaExpected {
  at::Tensor y_SB, ssm;
};

at::Tensor norm_of_groups(const at::Tensor& x_D, const MambaOptions& options) {
  const at::Tensor x_GD = x_D.unflatten(0, {options.groups, -1});
  return (x_GD * (x_GD.square().mean(-1, true) + options.norm_eps).rsqrt()).flatten();
}

at::Tensor gated_norm(const at::Tensor& y_D, const at::Tensor& z_D, const MambaProblem& p) {
  const at::Tensor gate = at::silu(z_D);
  if (p.options.gate == MambaGate::alone) return y_D * gate;
  if (p.options.gate == MambaGate::after_norm)
    return norm_of_groups(y_D, p.options) * p.weights.norm_weight * gate;
  return norm_of_groups(y_D * gate, p.options) * p.weights.norm_weight;
}

// One sequence.
MambaExpected recurrence(const MambaProblem& p, int64_t b) {
  const MambaOptions& o = p.options;
  const int64_t d = o.inner(), gn = o.groups * o.state, tokens = p.input.zxbcdt_SB.size(0);
  const auto document = [&](int64_t t) {
    return p.input.document_SB.defined() ? p.input.document_SB[t][b].item<int64_t>() : 0;
  };
  const at::Tensor all = p.input.zxbcdt_SB.select(1, b), xbc = all.narrow(1, d, o.channels());
  at::Tensor S = p.input.before.ssm.defined() ? p.input.before.ssm[b]
                                              : at::zeros({o.heads, o.head_dim, o.state}, at::kDouble);
  std::vector<at::Tensor> y;
  for (int64_t t = 0; t < tokens; ++t) {
    if (t > 0 && document(t) != document(t - 1)) S = at::zeros_like(S);
    at::Tensor u =
        p.weights.conv_bias.defined() ? p.weights.conv_bias : at::zeros({o.channels()}, at::kDouble);
    for (int64_t back = 0; back < 4 && back <= t; ++back) {
      if (document(t - back) == document(t))
        u = u + p.weights.conv_weight.select(2, 3 - back).squeeze(1) * xbc[t - back];
    }
    const std::vector<at::Tensor> parts = at::silu(u).split_with_sizes({d, gn, gn});
    const int64_t r = o.heads / o.groups;
    const auto per_head = [&](const at::Tensor& x) {
      return x.view({o.groups, o.state}).repeat_interleave(r, 0);
    };
    const at::Tensor x = parts[0].view({o.heads, o.head_dim}), B = per_head(parts[1]), C = per_head(parts[2]);
    const at::Tensor dt = at::softplus(all[t].narrow(0, d + o.channels(), o.heads) + p.weights.dt_bias)
                              .clamp(o.time_step_min, o.time_step_max);
    const at::Tensor a = (-p.weights.A_log.exp() * dt).exp();
    S = a.view({-1, 1, 1}) * S + (dt.unsqueeze(1) * x).unsqueeze(2) * B.unsqueeze(1);
    const at::Tensor out = (S * C.unsqueeze(1)).sum(2) + p.weights.D.unsqueeze(1) * x;
    y.push_back(gated_norm(out.flatten(), all[t].narrow(0, 0, d), p));
  }
  return {at::stack(y), S};
}

MambaExpected recurrences(const MambaProblem& p) {
  std::vector<at::Tensor> y, ssm;
  for (int64_t b = 0; b < p.input.zxbcdt_SB.size(1); ++b) {
    const MambaExpected one = recurrence(p, b);
    y.push_back(one.y_SB);
    ssm.push_back(one.ssm);
  }
  return {at::stack(y, 1), at::stack(ssm)};
}

MambaInput without_gradients(const MambaInput& input) {
  return {f64(input.zxbcdt_SB), input.document_SB, {f64(input.before.conv), f64(input.before.ssm)}};
}

MambaWeights without_gradients(const MambaWeights& w) {
  return {f64(w.conv_weight), f64(w.conv_bias), f64(w.dt_bias), f64(w.A_log), f64(w.D), f64(w.norm_weight)};
}

void expect_equal_f64(const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  EXPECT_LT(relative_error(actual, expected), 1e-12) << what;
}

void check_mamba(const MambaCase& of) {
  const MambaProblem p(of);
  const MambaExpected expected = recurrences(p);
  ((expected.y_SB * p.dy).sum() + (expected.ssm * p.dssm).sum()).backward();
  const MambaInput input = without_gradients(p.input);
  const MambaWeights weights = without_gradients(p.weights);
  const MambaOutput output = mamba_forward(input, weights, p.options);
  expect_equal_f64(output.y_SB, expected.y_SB, "y");
  expect_equal_f64(output.after.ssm, expected.ssm, "state");
  const MambaGradients g = mamba_backward(p.dy, p.dssm, input, weights, p.options);
  expect_equal_f64(g.dzxbcdt_SB, p.input.zxbcdt_SB.grad(), "zxbcdt");
  expect_equal_f64(g.weights.conv_weight, p.weights.conv_weight.grad(), "conv weight");
  if (of.conv_bias) expect_equal_f64(g.weights.conv_bias, p.weights.conv_bias.grad(), "conv bias");
  expect_equal_f64(g.weights.dt_bias, p.weights.dt_bias.grad(), "dt bias");
  expect_equal_f64(g.weights.A_log, p.weights.A_log.grad(), "A_log");
  expect_equal_f64(g.weights.D, p.weights.D.grad(), "D");
  if (weights.norm_weight.defined())
    expect_equal_f64(g.weights.norm_weight, p.weights.norm_weight.grad(), "norm");
  if (p.input.before.ssm.defined()) expect_equal_f64(g.dssm, p.input.before.ssm.grad(), "state before");
}

MambaOptions small_mamba(int64_t chunk = 4) {
  return {.heads = 4, .head_dim = 3, .groups = 2, .state = 5, .chunk = chunk};
}

TEST(MambaCore, MatchesTheRecurrence) {
  at::manual_seed(1);
  check_mamba({.options = small_mamba(), .tokens = 13, .batch = 2});
  check_mamba({.options = small_mamba(64), .tokens = 6, .batch = 1, .conv_bias = false});
  check_mamba({.options = {.heads = 2, .head_dim = 136, .groups = 1, .state = 256, .chunk = 4},
               .tokens = 7,
               .batch = 1});
  MambaOptions bounded = small_mamba();
  bounded.time_step_min = 0.2, bounded.time_step_max = 0.6;
  check_mamba({.options = bounded, .tokens = 8, .batch = 1});
  for (const MambaGate gate : {MambaGate::after_norm, MambaGate::alone}) {
    MambaOptions other = small_mamba();
    other.gate = gate;
    check_mamba({.options = other, .tokens = 5, .batch = 2});
  }
}

// By parts of the heads, whose outputs are normalized together.
TEST(MambaCore, TheNormMayFollowElsewhere) {
  at::manual_seed(5);
  const MambaProblem p({.options = small_mamba(), .tokens = 9, .batch = 2});
  const MambaInput input = without_gradients(p.input);
  MambaWeights weights = without_gradients(p.weights);
  const MambaOutput whole = mamba_forward(input, weights, p.options);
  const MambaGradients expected = mamba_backward(p.dy, {}, input, weights, p.options);
  const at::Tensor norm_weight = std::exchange(weights.norm_weight, at::Tensor());
  const int64_t d = p.options.inner();
  const at::Tensor z = input.zxbcdt_SB.narrow(2, 0, d);
  MambaInput rest = input;
  rest.zxbcdt_SB = input.zxbcdt_SB.narrow(2, d, p.options.width() - d);
  MambaOptions open = p.options;
  open.gate = MambaGate::none;
  const at::Tensor y = mamba_forward(rest, weights, open).y_SB;
  expect_equal_f64(mamba_gated_norm(y, z, norm_weight, p.options), whole.y_SB, "y");
  const MambaNormGradients norm = mamba_gated_norm_backward(p.dy, y, z, norm_weight, p.options);
  const MambaGradients g = mamba_backward(norm.dy_SB, {}, rest, weights, open);
  expect_equal_f64(at::cat({norm.dz_SB, g.dzxbcdt_SB}, 2), expected.dzxbcdt_SB, "zxbcdt");
  expect_equal_f64(norm.dweight, expected.weights.norm_weight, "norm weight");
}

TEST(MambaCore, PackedDocumentsDoNotSeeEachOther) {
  at::manual_seed(2);
  check_mamba({.options = small_mamba(), .tokens = 14, .batch = 2, .documents = {{5, 1, 1, 7}, {2, 12}}});
  check_mamba({.options = small_mamba(64), .tokens = 5, .batch = 1, .documents = {{1, 4}}});
}

// Prompts in parts, and steps of one token.
TEST(MambaCore, StatesCarryOn) {
  at::manual_seed(3);
  const MambaCase of{.options = small_mamba(), .tokens = 11, .batch = 2};
  const MambaProblem p(of);
  const MambaWeights weights = without_gradients(p.weights);
  MambaInput input = without_gradients(p.input);
  input.before.conv = f64(randn({2, 3, p.options.channels()}));
  const MambaOutput whole = mamba_forward(input, weights, p.options);
  std::vector<at::Tensor> y;
  MambaStates states = input.before;
  for (const auto& [first, length] : std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 5}, {7, 1}}) {
    const MambaOutput part = mamba_forward(
        {.zxbcdt_SB = input.zxbcdt_SB.narrow(0, first, length), .before = states}, weights, p.options);
    y.push_back(part.y_SB);
    states = part.after;
  }
  for (int64_t t = 8; t < 11; ++t) {
    const MambaOutput step = mamba_step(input.zxbcdt_SB[t], states, weights, p.options);
    y.push_back(step.y_SB.unsqueeze(0));
    states = step.after;
  }
  expect_equal_f64(at::cat(y), whole.y_SB, "y");
  expect_equal_f64(states.ssm, whole.after.ssm, "state");
  expect_equal_f64(states.conv, whole.after.conv, "convolution");
}

TEST(MambaCore, OtherDtypesRoundInputsAndOutputsOnly) {
  at::manual_seed(4);
  const MambaProblem p({.options = small_mamba(), .tokens = 9, .batch = 1});
  for (const at::ScalarType type : float_types) {
    const auto as = [&](const at::Tensor& x) { return f64(x).to(type); };
    const auto wide = [&](const at::Tensor& x) {
      return f64(x).to(type == at::kDouble ? at::kDouble : at::kFloat);
    };
    const MambaWeights& w = p.weights;
    const MambaWeights cast{as(w.conv_weight), as(w.conv_bias), wide(w.dt_bias),
                            wide(w.A_log),     wide(w.D),       as(w.norm_weight)};
    const MambaInput input{.zxbcdt_SB = as(p.input.zxbcdt_SB)};
    const MambaWeights rounded{f64(cast.conv_weight), f64(cast.conv_bias), f64(cast.dt_bias),
                               f64(cast.A_log),       f64(cast.D),         f64(cast.norm_weight)};
    const MambaOutput expected = mamba_forward({.zxbcdt_SB = f64(input.zxbcdt_SB)}, rounded, p.options);
    EXPECT_CLOSE(mamba_forward(input, cast, p.options).y_SB, expected.y_SB, type);
  }
}

// --- Numbers of other programs ---

using testing::tensor_of;

// [B, S, ...] -> [S, B, ...]
at::Tensor tokens_first(const nlohmann::json& value) {
  return tensor_of(value).transpose(0, 1).contiguous();
}

MambaOptions options_of(const nlohmann::json& of) {
  MambaOptions options{.heads = of.at("heads"),
                       .head_dim = of.at("head_dim"),
                       .groups = of.at("groups"),
                       .state = of.at("state"),
                       .chunk = of.value("chunk_used_for_check", 8)};
  const std::string norm = of.value("norm", "gate_then_norm");
  if (norm != "gate_then_norm") options.gate = norm == "gate_only" ? MambaGate::alone : MambaGate::after_norm;
  return options;
}

MambaWeights weights_of(const nlohmann::json& in) {
  const auto get = [&](const char* name) {
    return in.contains(name) ? tensor_of(in.at(name)) : at::Tensor();
  };
  const at::Tensor conv = get("conv_weight");
  return {conv.dim() == 2 ? conv.unsqueeze(1) : conv,
          get("conv_bias"),
          get("dt_bias"),
          get("A_log"),
          get("D"),
          get("norm_weight")};
}

void expect_gradients(const MambaGradients& g, const nlohmann::json& grads) {
  const auto expect = [&](const char* name, const at::Tensor& actual) {
    if (!grads.contains(name)) return;
    EXPECT_LT(relative_error(actual, tensor_of(grads.at(name)).view(actual.sizes())), 1e-10) << name;
  };
  EXPECT_LT(relative_error(g.dzxbcdt_SB, tokens_first(grads.at("zxBCdt"))), 1e-10);
  expect("conv_weight", g.weights.conv_weight);
  expect("conv_bias", g.weights.conv_bias);
  expect("dt_bias", g.weights.dt_bias);
  expect("A_log", g.weights.A_log);
  expect("D", g.weights.D);
  expect("norm_weight", g.weights.norm_weight);
  expect("initial_state", g.dssm);
}

TEST(MambaCore, MatchesMambaSsm) {
  const nlohmann::json cases = testing::shared_fixture("core/mamba2.json");
  if (cases.is_null()) GTEST_SKIP() << "no fixtures beside the repository";
  for (const nlohmann::json& of : cases) {
    const nlohmann::json& in = of.at("inputs");
    MambaInput input{.zxbcdt_SB = tokens_first(in.at("zxBCdt"))};
    if (in.contains("initial_state")) input.before.ssm = tensor_of(in.at("initial_state"));
    const MambaWeights weights = weights_of(in);
    const MambaOptions options = options_of(of);
    const MambaOutput output = mamba_forward(input, weights, options);
    EXPECT_LT(relative_error(output.y_SB, tokens_first(of.at("y_out"))), 1e-10);
    EXPECT_LT(relative_error(output.after.ssm, tensor_of(of.at("final_state"))), 1e-10);
    const at::Tensor conv = tensor_of(of.at("final_conv_state")).transpose(1, 2);  // the last 4, not 3
    EXPECT_LT(relative_error(output.after.conv, conv.narrow(1, 1, 3)), 1e-10);
    expect_gradients(mamba_backward(tokens_first(of.at("dy_out")), tensor_of(of.at("dfinal_state")), input,
                                    weights, options),
                     of.at("grads"));
  }
}

TEST(MambaCore, PackedDocumentsMatchTransformers) {
  const nlohmann::json cases = testing::shared_fixture("next/linear/mamba2_packed.json");
  if (cases.is_null()) GTEST_SKIP() << "no fixtures beside the repository";
  for (const nlohmann::json& of : cases) {
    const nlohmann::json& in = of.at("inputs");
    const at::Tensor lengths = at::tensor(of.at("documents").get<std::vector<int64_t>>(), at::kLong);
    const MambaInput input{
        .zxbcdt_SB = tokens_first(in.at("zxBCdt")),
        .document_SB = at::repeat_interleave(at::arange(lengths.numel()), lengths).unsqueeze(1)};
    const MambaWeights weights = weights_of(in);
    const MambaOptions options = options_of(of);
    EXPECT_LT(relative_error(mamba_forward(input, weights, options).y_SB, tokens_first(of.at("out"))), 1e-10);
    // The fixture's gradients are also those of the states at the end of each document.
    const at::Tensor dstates = tensor_of(of.at("dfinal_states"));
    std::vector<at::Tensor> dinputs;
    MambaGradients sum;
    int64_t first = 0;
    for (int64_t i = 0; i < lengths.numel(); ++i) {
      const int64_t length = lengths[i].item<int64_t>();
      const MambaInput one{.zxbcdt_SB = input.zxbcdt_SB.narrow(0, first, length)};
      const at::Tensor dy = tokens_first(of.at("dout")).narrow(0, first, length);
      const MambaGradients g = mamba_backward(dy, dstates.narrow(0, i, 1), one, weights, options);
      const MambaOutput output = mamba_forward(one, weights, options);
      EXPECT_LT(relative_error(output.after.ssm, tensor_of(of.at("final_states")).narrow(0, i, 1)), 1e-10);
      dinputs.push_back(g.dzxbcdt_SB);
      const auto add = [&](at::Tensor MambaWeights::* member) {
        at::Tensor& total = sum.weights.*member;
        if ((g.weights.*member).defined()) total = i == 0 ? g.weights.*member : total + g.weights.*member;
      };
      for (const auto member : {&MambaWeights::conv_weight, &MambaWeights::conv_bias, &MambaWeights::dt_bias,
                                &MambaWeights::A_log, &MambaWeights::D, &MambaWeights::norm_weight})
        add(member);
      first += length;
    }
    sum.dzxbcdt_SB = at::cat(dinputs);
    expect_gradients(sum, of.at("grads"));
    // Packed, without these: the same as one by one.
    const MambaGradients packed = mamba_backward(tokens_first(of.at("dout")), {}, input, weights, options);
    first = 0;
    for (int64_t i = 0; i < lengths.numel(); ++i) {
      const int64_t length = lengths[i].item<int64_t>();
      const MambaInput one{.zxbcdt_SB = input.zxbcdt_SB.narrow(0, first, length)};
      const MambaGradients g =
          mamba_backward(tokens_first(of.at("dout")).narrow(0, first, length), {}, one, weights, options);
      EXPECT_LT(relative_error(packed.dzxbcdt_SB.narrow(0, first, length), g.dzxbcdt_SB), 1e-10);
      first += length;
    }
  }
}

}  // namespace
}  // namespace teratron
