// Serial twins: every layout gives one rank's loss and every gradient.
#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "teratron/comm/thread_world.h"
#include "teratron/model/gpt.h"
#include "teratron/optim/flat_buffer.h"

namespace teratron {
namespace {

struct Layout {
  int64_t tp = 1;
  int64_t dp = 1;
  bool sequence_parallel = false;
};

struct Variant {
  std::string name;
  GPTConfig config;
};

GPTConfig small_config() {
  return {.layers = 2,
          .hidden = 16,
          .ffn_hidden = 24,
          .heads = 4,
          .query_groups = 4,
          .kv_channels = 4,
          .vocabulary = 37,
          .padded_vocabulary = 40,
          .max_positions = 8};
}

std::vector<Variant> variants() {
  std::vector<Variant> all;
  all.push_back({"gpt2", small_config()});
  GPTConfig llama = small_config();
  llama.query_groups = 2;
  llama.position = PositionEmbedding::rope;
  llama.norm.kind = NormKind::rms;
  llama.activation = Activation::swiglu;
  llama.linear_bias = false;
  llama.tied_embeddings = false;
  all.push_back({"llama", llama});
  GPTConfig qwen = llama;
  qwen.qkv_bias = true;
  qwen.tied_embeddings = true;
  qwen.rope.percent = 0.5;
  all.push_back({"qwen", qwen});
  GPTConfig dropped = small_config();
  dropped.hidden_dropout = 0.2;
  dropped.attention_dropout = 0.1;
  dropped.norm.zero_centered = true;
  all.push_back({"dropout", dropped});
  return all;
}

constexpr int64_t sequence = 8;
constexpr int64_t samples = 4;

// The part of the global batch that one data-parallel rank sees.
MicroBatch batch_of(int64_t rank, int64_t ranks, bool documents) {
  // A generator of its own: the default one is shared by the rank threads.
  at::Generator generator = at::detail::createCPUGenerator(7);
  const at::Tensor tokens = at::randint(0, 37, {sequence, samples}, generator, at::kLong);
  const at::Tensor labels = at::randint(0, 37, {sequence, samples}, generator, at::kLong);
  const int64_t count = samples / ranks;
  const int64_t first = rank * count;
  MicroBatch batch{
      .tokens_SB = tokens.narrow(1, first, count).contiguous(),
      .positions_SB = at::arange(sequence, at::kLong).unsqueeze(1).expand({sequence, count}).contiguous(),
      .labels_SB = labels.narrow(1, first, count).contiguous(),
      .loss_mask_SB = at::ones({sequence, count}),
      .first_sample = 100 + first};
  if (documents) {
    batch.first_visible_BS = at::zeros({count, sequence}, at::kInt);
    batch.first_visible_BS.narrow(1, 5, 3).fill_(5);
  }
  return batch;
}

// The global tensor out of one rank's part.
void place(const Shard& shard, const at::Tensor& local, at::Tensor& global) {
  for (const Piece& piece : shard.pieces()) {
    at::Tensor to = global;
    at::Tensor from = local;
    for (size_t dim = 0; dim < piece.global.size.size(); ++dim) {
      to = to.narrow(dim, piece.global.start[dim], piece.global.size[dim]);
      const bool is_cut = static_cast<int64_t>(dim) == shard.dim;
      from = from.narrow(dim, is_cut ? piece.local_start : 0, piece.global.size[dim]);
    }
    to.copy_(from);
  }
}

struct Result {
  double loss = 0.0;
  std::map<std::string, at::Tensor> gradients;  // global
};

Result run(const GPTConfig& config, const Layout& layout, at::ScalarType dtype, bool documents) {
  Result result;
  std::mutex mutex;
  run_ranks(MeshOptions{.tp = layout.tp, .dp = layout.dp}, [&](const Mesh& mesh) {
    ParameterSet parameters({.dtype = dtype, .seed = 3});
    const TensorParallel parallel{mesh.group(Axis::tp), layout.sequence_parallel};
    GPT model(parameters, config, {.layers = config.layers}, parallel);
    std::vector<Parameter*> all;
    for (Parameter& parameter : parameters.all()) all.push_back(&parameter);
    FlatBuffer buffer(all, {.data_parallel = mesh.group(Axis::dp), .bucket_size = 1000});
    buffer.start_step();
    buffer.expect_last_microbatch();
    const Group& data_parallel = mesh.group(Axis::dp);
    const MicroBatch batch = batch_of(data_parallel.rank, data_parallel.size, documents);
    const at::Tensor loss = model.loss(model.forward({}, batch), batch).mean();
    loss.backward();
    buffer.finish_reduction();
    at::Tensor mean = loss.detach().to(at::kDouble);
    data_parallel.communicator->all_reduce(mean, ReduceOp::avg).wait();
    for (Parameter& parameter : parameters.all()) {
      if (parameter.options.sum_over_tensor_parallel) {
        mesh.group(Axis::tp).communicator->all_reduce(parameter.main_grad, ReduceOp::sum).wait();
      }
    }
    const std::lock_guard lock(mutex);
    result.loss = mean.item<double>();
    for (Parameter& parameter : parameters.all()) {
      at::Tensor& global = result.gradients[parameter.name];
      if (!global.defined())
        global = at::zeros(parameter.shard().global_shape, parameter.main_grad.options());
      place(parameter.shard(), parameter.main_grad, global);
    }
  });
  return result;
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).norm().item<double>() / (b.norm().item<double>() + 1e-30);
}

void expect_twins(const Variant& variant, const Layout& layout, at::ScalarType dtype, bool documents) {
  const double bound = dtype == at::kDouble ? 1e-12 : 1e-5;
  const Result serial = run(variant.config, {}, dtype, documents);
  const Result parallel = run(variant.config, layout, dtype, documents);
  EXPECT_NEAR(parallel.loss, serial.loss, bound * serial.loss) << variant.name;
  ASSERT_EQ(parallel.gradients.size(), serial.gradients.size());
  for (const auto& [name, gradient] : serial.gradients) {
    EXPECT_GT(gradient.norm().item<double>(), 0.0) << name;
    EXPECT_LT(relative_error(parallel.gradients.at(name), gradient), bound)
        << variant.name << " " << name << " tp " << layout.tp << " dp " << layout.dp;
  }
}

class Twins : public testing::TestWithParam<Layout> {};

TEST_P(Twins, GiveOneRanksLossAndGradients) {
  for (const Variant& variant : variants()) {
    expect_twins(variant, GetParam(), at::kDouble, false);
    expect_twins(variant, GetParam(), at::kFloat, false);
  }
}

TEST_P(Twins, GiveThemWithDocumentBounds) {
  for (const Variant& variant : variants()) expect_twins(variant, GetParam(), at::kDouble, true);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Twins,
                         testing::Values(Layout{.tp = 2}, Layout{.tp = 2, .sequence_parallel = true},
                                         Layout{.dp = 2}, Layout{.tp = 2, .dp = 2},
                                         Layout{.tp = 2, .dp = 2, .sequence_parallel = true},
                                         Layout{.dp = 4}));

TEST(Gpt, LogitsOfPaddedVocabularyDoNotMatter) {
  GPTConfig config = small_config();
  const Result padded = run(config, {}, at::kDouble, false);
  config.padded_vocabulary = 37;
  const Result exact = run(config, {}, at::kDouble, false);
  EXPECT_DOUBLE_EQ(padded.loss, exact.loss);
  for (const auto& [name, gradient] : exact.gradients) {
    EXPECT_LT(relative_error(padded.gradients.at(name), gradient), 1e-13) << name;
  }
}

TEST(Gpt, CachedKeysGiveTheSameLogitsAsTheWholeText) {
  const at::NoGradGuard no_grad;
  for (const Variant& variant : variants()) {
    ParameterSet parameters({.dtype = at::kDouble, .seed = 3});
    GPT model(parameters, variant.config, {.layers = variant.config.layers}, {});
    MicroBatch whole = batch_of(0, 1, false);
    whole.training = false;
    const at::Tensor expected = model.logits(model.forward({}, whole));
    std::vector<KeyValueCache> caches(variant.config.layers);
    const std::vector<std::pair<int64_t, int64_t>> chunks = {{0, 3}, {3, 1}, {4, 1}, {5, 3}};
    for (const auto& [first, length] : chunks) {
      MicroBatch chunk{.tokens_SB = whole.tokens_SB.narrow(0, first, length),
                       .positions_SB = whole.positions_SB.narrow(0, first, length),
                       .training = false};
      const at::Tensor logits = model.logits(model.forward({}, chunk, &caches));
      EXPECT_LT(relative_error(logits, expected.narrow(0, first, length)), 1e-12) << variant.name;
    }
  }
}

TEST(Gpt, GradientsAreThoseOfFiniteDifferences) {
  for (const Variant& variant : variants()) {
    ParameterSet parameters({.dtype = at::kDouble, .seed = 3});
    GPT model(parameters, variant.config, {.layers = variant.config.layers}, {});
    const MicroBatch batch = batch_of(0, 1, false);
    const auto loss = [&] { return model.loss(model.forward({}, batch), batch).mean(); };
    loss().backward();
    at::manual_seed(11);
    const at::NoGradGuard no_grad;
    for (Parameter& parameter : parameters.all()) {
      // Along a random direction the derivative is the gradient's projection.
      const at::Tensor direction = at::randn_like(parameter.tensor);
      const double step = 1e-6;
      parameter.tensor.add_(direction, step);
      const double above = loss().item<double>();
      parameter.tensor.add_(direction, -2.0 * step);
      const double below = loss().item<double>();
      parameter.tensor.add_(direction, step);
      const double expected = (above - below) / (2.0 * step);
      const double actual = (parameter.main_grad * direction).sum().item<double>();
      EXPECT_NEAR(actual, expected, 1e-6 * std::max(1.0, std::abs(expected)))
          << variant.name << " " << parameter.name;
    }
  }
}

}  // namespace
}  // namespace teratron
