#include "teratron/testing/models.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/optim/finalize_grads.h"

namespace teratron {

namespace {

constexpr int64_t samples = 4;

void run_rank(const TestStep& step, const Mesh& mesh, std::mutex& mutex, LossAndGrads& result) {
  ParameterSet parameters({.dtype = step.dtype, .device = step.device, .seed = 3, .fp8 = step.fp8});
  const TensorParallel parallel{mesh.group(Axis::tp), step.layout.sequence_parallel};
  GPT model(parameters, step.config, {.layers = step.config.layers}, parallel);
  const Group& data_parallel = mesh.data_parallel();
  ParamAndGradBuffers buffer(parameters, mesh, {.bucket_size = 1000, .average_in_collective = true});
  buffer.zero_grad();
  buffer.set_last_microbatch();
  const MicroBatch batch = to_device(test_batch(step.config, data_parallel, step.documents), step.device);
  const at::Tensor loss = model.token_losses(model.forward({}, batch, nullptr), batch).mean();
  loss.backward();
  buffer.finish_grad_sync();
  at::Tensor mean = loss.detach().to(at::kDouble);
  data_parallel.communicator->all_reduce(mean, ReduceOp::avg).wait();
  finalize_grads(buffer, mesh);
  const std::lock_guard lock(mutex);
  result.loss = mean.item<double>();
  for (Parameter& parameter : parameters.all()) {
    const at::Tensor local = parameter.main_grad.cpu();
    at::Tensor& global = result.gradients[parameter.name];
    if (!global.defined()) global = at::zeros(parameter.shard().global_shape, local.options());
    place(parameter.shard(), local, global);
  }
}

}  // namespace

GPTConfig gpt2_config(const TestSizes& sizes) {
  GPTConfig config{{{.layers = 2,
                     .hidden = sizes.hidden,
                     .ffn_hidden = sizes.ffn_hidden,
                     .heads = sizes.heads,
                     .query_groups = sizes.heads,
                     .kv_channels = sizes.hidden / sizes.heads}}};
  config.vocabulary = sizes.vocabulary;
  config.padded_vocabulary = sizes.padded_vocabulary;
  config.max_positions = sizes.positions;
  return config;
}

GPTConfig llama_config(const TestSizes& sizes) {
  GPTConfig config = gpt2_config(sizes);
  config.query_groups = 2;
  config.position = PositionEmbedding::rope;
  config.norm.kind = NormKind::rms;
  config.activation = Activation::swiglu;
  config.linear_bias = false;
  config.tied_embeddings = false;
  return config;
}

std::vector<TestVariant> family_variants(const TestSizes& sizes) {
  GPTConfig qwen = llama_config(sizes);
  qwen.qkv_bias = true;
  qwen.tied_embeddings = true;
  qwen.rope.percent = 0.5;
  GPTConfig dropped = gpt2_config(sizes);
  dropped.hidden_dropout = 0.2;
  dropped.attention_dropout = 0.1;
  dropped.norm.zero_centered = true;
  return {{"gpt2", gpt2_config(sizes)}, {"llama", llama_config(sizes)}, {"qwen", qwen}, {"dropout", dropped}};
}

// Options of Gemma 2, gpt-oss and Phi-3.
static void add_decoder_variants(std::vector<TestVariant>& all, const GPTConfig& llama, GPTConfig gemma) {
  const auto add = [&all](const char* name, GPTConfig config) -> GPTConfig& {
    return all.emplace_back(TestVariant{name, std::move(config)}).config;
  };
  GPTConfig& gemma2 = add("sandwich norms, soft caps, another rotation under a window", gemma);
  gemma2.sandwich_norms = true;
  gemma2.score_softcap = 0.05;
  gemma2.logits_softcap = 0.1;
  gemma2.windows = {3, 0};
  gemma2.local_rope = RotaryConfig{.base = 100.0};
  gemma2.loss_chunks = 2;
  GPTConfig& gpt_oss = add("sinks, clamped gates, a layer without rotation", llama);
  gpt_oss.softmax = SoftmaxType::learnable;
  gpt_oss.glu = {.slope = 1.702, .offset = 1.0, .limit = 0.03};
  gpt_oss.linear_bias = true;
  gpt_oss.windows = {3, 0};
  gpt_oss.no_rope = {0, 1};
  GPTConfig& phi = add("longrope, softmax with 1 in its sum", llama);
  phi.softmax = SoftmaxType::off_by_one;
  const auto pairs = static_cast<size_t>(llama.kv_channels / 2);
  phi.rope.longrope = {.short_factors = std::vector<double>(pairs, 1.5),
                       .long_factors = std::vector<double>(pairs, 3.0),
                       .positions = 4,
                       .magnitude = 1.2};
}

// Options of Command R, nanochat and Llama 4.
static void add_later_variants(std::vector<TestVariant>& all, const GPTConfig& llama) {
  const auto add = [&](const char* name) -> GPTConfig& {
    return all.emplace_back(TestVariant{name, llama}).config;
  };
  GPTConfig& cohere =
      add("one norm of two branches, norms without biases, qk norm with weights of each head");
  cohere.norm.kind = NormKind::layer;
  cohere.norm_weights = NormWeights::no_bias;
  cohere.parallel_residual = cohere.one_parallel_norm = cohere.qk_norm = cohere.qk_norm_own_weights = true;
  GPTConfig& nanochat = add("norms without weights, reversed rotation");
  nanochat.norm_weights = NormWeights::none;
  nanochat.embedding_norm = nanochat.qk_l2_norm = nanochat.rope.reversed = true;
  GPTConfig& llama4 = add("chunks, temperatures in a layer without rotation");
  llama4.chunk = 3;
  llama4.no_rope = {0, 1};
  llama4.temperature = {.scale = 0.5, .step = 2};
  llama4.qk_l2_norm = true;
}

std::vector<TestVariant> option_variants(const TestSizes& sizes) {
  std::vector<TestVariant> all;
  const auto add = [&all](const char* name, GPTConfig config) -> GPTConfig& {
    return all.emplace_back(TestVariant{name, std::move(config)}).config;
  };
  const GPTConfig gpt2 = gpt2_config(sizes);
  const GPTConfig llama = llama_config(sizes);
  add("alibi", gpt2).position = PositionEmbedding::alibi;
  add("no positions", gpt2).position = PositionEmbedding::none;
  add("interleaved", llama).rope.interleaved = true;
  add("interpolated", llama).rope.interpolation = 4.0;
  add("llama 3", llama).rope.llama3_factor = 8.0;
  add("layernorm-1p", gpt2).norm.zero_centered = true;
  add("residual after norm", gpt2).residual_after_norm = true;
  add("erf gelu", gpt2).activation = Activation::gelu_erf;
  add("geglu", gpt2).activation = Activation::geglu;
  add("squared relu", gpt2).activation = Activation::squared_relu;
  add("qk rms norm", llama).qk_norm = true;
  add("qk layer norm", gpt2).qk_norm = true;
  GPTConfig& olmo = add("norm of outputs, qk norm of all heads", llama);
  olmo.norm_outputs = olmo.qk_norm = olmo.qk_norm_all_heads = true;
  add("layer norm of outputs", gpt2).norm_outputs = true;
  GPTConfig& neox = add("parallel residual", gpt2);
  neox.parallel_residual = true;
  neox.position = PositionEmbedding::rope;
  neox.rope.percent = 0.5;
  neox.tied_embeddings = false;
  GPTConfig& bloom = add("embedding norm", gpt2);
  bloom.embedding_norm = true;
  bloom.position = PositionEmbedding::alibi;
  GPTConfig& opt = add("relu, first position row", gpt2);
  opt.activation = Activation::relu;
  opt.first_position_row = 2;
  GPTConfig& gemma = add("scaled embeddings", llama);
  gemma.embedding_scale = 4.0;
  gemma.activation = Activation::geglu;
  gemma.norm.zero_centered = gemma.tied_embeddings = true;
  add_decoder_variants(all, llama, gemma);
  add_later_variants(all, llama);
  add("query-key scaling", gpt2).query_key_layer_scaling = true;
  add("window", llama).windows = {3, 3};
  add("a window in one layer", gpt2).windows = {0, 2};
  add("xavier", llama).xavier_init = true;
  add("narrow heads", llama).kv_channels = 2;
  return all;
}

std::vector<TestVariant> all_variants(const TestSizes& sizes) {
  std::vector<TestVariant> all = family_variants(sizes);
  for (TestVariant& variant : option_variants(sizes)) all.push_back(std::move(variant));
  return all;
}

std::vector<TestVariant> deep_variants() {
  std::vector<TestVariant> all = all_variants();
  for (TestVariant& variant : all) {
    variant.config.layers = 3;
    if (!variant.config.windows.empty()) variant.config.windows.push_back(4);
    if (!variant.config.no_rope.empty()) variant.config.no_rope.push_back(0);
  }
  return all;
}

GPTConfig random_config(std::mt19937& random, const TestSizes& sizes) {
  const auto coin = [&random] { return random() % 2 == 0; };
  GPTConfig config = coin() ? gpt2_config(sizes) : llama_config(sizes);
  config.layers = 1 + static_cast<int64_t>(random() % 3);
  config.query_groups = coin() ? 2 : coin() ? 1 : 4;
  config.kv_channels = coin() ? 4 : 2;
  constexpr PositionEmbedding positions[] = {PositionEmbedding::learned_absolute, PositionEmbedding::rope,
                                             PositionEmbedding::alibi, PositionEmbedding::none};
  config.position = positions[random() % std::size(positions)];
  config.rope = {.percent = config.kv_channels == 4 && coin() ? 0.5 : 1.0,
                 .interleaved = coin(),
                 .interpolation = coin() ? 1.0 : 2.0,
                 .llama3_factor = coin() ? 0.0 : 8.0};
  config.norm = {.kind = coin() ? NormKind::rms : NormKind::layer, .zero_centered = coin()};
  constexpr Activation activations[] = {Activation::gelu,   Activation::gelu_erf, Activation::squared_relu,
                                        Activation::swiglu, Activation::geglu,    Activation::relu};
  config.activation = activations[random() % std::size(activations)];
  config.linear_bias = coin();
  config.qkv_bias = coin();
  config.tied_embeddings = coin();
  config.qk_norm = coin();
  config.qk_norm_all_heads = config.norm.kind == NormKind::rms && coin();
  switch (random() % 4) {
    case 0:
      config.residual_after_norm = true;
      break;
    case 1:
      config.norm_outputs = true;
      break;
    case 2:
      config.parallel_residual = true;
      break;
    default:
      break;
  }
  config.embedding_norm = coin();
  config.embedding_scale = coin() ? 1.0 : 4.0;
  config.first_position_row = coin() ? 0 : 2;
  config.query_key_layer_scaling = coin();
  if (coin()) config.windows.assign(config.layers, 2 + static_cast<int64_t>(random() % 3));
  config.xavier_init = coin();
  config.hidden_dropout = coin() ? 0.0 : 0.2;
  config.attention_dropout = coin() ? 0.0 : 0.1;
  config.one_parallel_norm = config.parallel_residual && coin();
  config.qk_norm_own_weights = config.qk_norm && !config.qk_norm_all_heads && coin();
  config.norm_weights = static_cast<NormWeights>(random() % 3);
  return config;
}

MicroBatch test_batch(const GPTConfig& config, const Group& data_parallel, bool documents) {
  // Not the default generator, which the rank threads share.
  at::Generator generator = at::detail::createCPUGenerator(7);
  const int64_t sequence = config.max_positions;
  const at::Tensor tokens = at::randint(0, config.vocabulary, {sequence, samples}, generator, at::kLong);
  const at::Tensor labels = at::randint(0, config.vocabulary, {sequence, samples}, generator, at::kLong);
  const int64_t count = samples / data_parallel.size;
  const int64_t first = data_parallel.rank * count;
  const at::Tensor index_SB = at::arange(sequence, at::kLong).unsqueeze(1).expand({sequence, count});
  MicroBatch batch{.tensors = {{"tokens", tokens.narrow(1, first, count).contiguous()},
                               {"sequence_index", index_SB.contiguous()},
                               {"labels", labels.narrow(1, first, count).contiguous()},
                               {"loss_mask", at::ones({sequence, count})}},
                   .sample_ids_B = at::arange(100 + first, 100 + first + count, at::kLong)};
  if (documents) batch.tensors.set("cu_seqlens", two_documents(count, sequence, sequence / 2 + 1));
  return batch;
}

MicroBatch to_device(MicroBatch batch, at::Device device) {
  NamedTensors moved;
  for (const auto& [name, tensor] : batch.tensors) moved.set(name, tensor.to(device));
  batch.tensors = moved;
  if (batch.sample_ids_B.defined()) batch.sample_ids_B = batch.sample_ids_B.to(device);
  return batch;
}

at::Tensor two_documents(int64_t samples, int64_t sequence, int64_t second) {
  std::vector<int32_t> bounds;
  for (int64_t sample = 0; sample < samples; ++sample) {
    bounds.push_back(static_cast<int32_t>(sample * sequence));
    bounds.push_back(static_cast<int32_t>(sample * sequence + second));
  }
  bounds.push_back(static_cast<int32_t>(samples * sequence));
  return at::tensor(bounds, at::kInt);
}

LossAndGrads run_step(const TestStep& step) {
  LossAndGrads result;
  std::mutex mutex;
  if (step.layout.tp * step.layout.dp == 1) {
    run_rank(step, Mesh(), mutex, result);
  } else {
    run_ranks(MeshOptions{.tp = step.layout.tp, .dp = step.layout.dp},
              [&](const Mesh& mesh) { run_rank(step, mesh, mutex, result); });
  }
  return result;
}

void expect_same_bits(const TestStep& actual, const TestStep& expected, const std::string& name) {
  const LossAndGrads a = run_step(actual), e = run_step(expected);
  EXPECT_EQ(a.loss, e.loss) << name;
  ASSERT_EQ(a.gradients.size(), e.gradients.size());
  for (const auto& [parameter, gradient] : e.gradients) {
    EXPECT_TRUE(at::equal(a.gradients.at(parameter), gradient)) << name << " " << parameter;
  }
}

void place(const Shard& shard, const at::Tensor& local, const at::Tensor& global) {
  for (const Piece& piece : shard.pieces()) {
    at::Tensor to = global;
    at::Tensor from = local;
    for (size_t dim = 0; dim < piece.global.size.size(); ++dim) {
      const auto axis = static_cast<int64_t>(dim);
      to = to.narrow(axis, piece.global.start[dim], piece.global.size[dim]);
      from = from.narrow(axis, axis == shard.dim ? piece.local_start : 0, piece.global.size[dim]);
    }
    to.copy_(from);
  }
}

}  // namespace teratron
