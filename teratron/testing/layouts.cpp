#include "teratron/testing/layouts.h"

#include <cstdlib>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/models/context_parallel_batch.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/pipeline/schedule.h"
#include "teratron/testing/deferred_world.h"
#include "teratron/testing/models.h"

namespace teratron {

namespace {

int64_t pick(std::mt19937& random, std::initializer_list<int64_t> values) {
  return *(values.begin() + static_cast<long>(random() % values.size()));
}

bool coin(std::mt19937& random) {
  return random() % 2 == 0;
}

int64_t numel(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

PipelineLayout pipeline_of(const ModelPlan& model, const Layout& layout) {
  PipelineLayoutOptions options{.layers = model.layers(), .stages = layout.pp};
  if (layout.split > 0) options.split = PipelineSplit{model.towers.front().layers, layout.split};
  if (!layout.stages.empty()) {
    options.text = layout.stages;
  } else {
    options.chunks = layout.chunks;
  }
  return pipeline_layout(options);
}

// Layers distributed over `parts` virtual stages at random: "Et||ttL".
std::string random_stages(int64_t layers, int64_t parts, std::mt19937& random) {
  std::vector<int64_t> counts(parts, 0);
  for (int64_t layer = 0; layer < layers; ++layer) counts[random() % counts.size()] += 1;
  std::string text = "E";
  for (int64_t part = 0; part < parts; ++part) {
    if (part > 0) text += '|';
    text += std::string(counts[part], 't');
  }
  return text + 'L';
}

bool every_stage_holds_something(const std::string& text, int64_t layers, int64_t pp) {
  try {
    pipeline_layout({.layers = layers, .stages = pp, .text = text});
    return true;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace

std::string to_string(const Layout& layout) {
  std::string text =
      fmt::format("tp {} pp {} dp {} chunks {} group {} micro-batches {} bucket {}", layout.tp, layout.pp,
                  layout.dp, layout.chunks, layout.group, layout.microbatches, layout.bucket_size);
  if (layout.cp > 1) text += fmt::format(" cp {}", layout.cp);
  if (layout.ep > 1) text += fmt::format(" ep {}", layout.ep);
  if (layout.etp > 1) text += fmt::format(" etp {}", layout.etp);
  if (layout.split > 0) text += fmt::format(" split {}", layout.split);
  if (!layout.stages.empty()) text += " stages " + layout.stages;
  if (layout.sequence_parallel) text += " sp";
  if (layout.sharded) text += " sharded";
  if (layout.overlap_param_gather) text += " overlap-gather";
  if (layout.average_in_collective) text += " average-in-collective";
  if (!layout.overlap_p2p) text += " no-overlap-p2p";
  if (!layout.overlap_tp) text += " no-overlap-tp";
  if (layout.late) text += " late";
  return text;
}

void run_layout(const Layout& layout, const std::function<void(const Mesh&)>& body) {
  run_ranks(layout.tp * layout.pp * layout.cp * layout.dp, [&](World& world) {
    DeferredWorld late(world);
    body(Mesh(layout.mesh(), layout.late ? late : world));
  });
}

EngineOptions engine_options(const GPTConfig& config, const Layout& layout, at::ScalarType dtype) {
  return engine_options(gpt_plan(config, {}), layout, dtype);
}

EngineOptions engine_options(const ModelPlan& model, const Layout& layout, at::ScalarType dtype) {
  return {.model = model,
          .parallel = {.pipeline = pipeline_of(model, layout),
                       .microbatch_group = layout.group,
                       .overlap_p2p = layout.overlap_p2p,
                       .sequence_parallel = layout.sequence_parallel,
                       .overlap_tensor_parallel = layout.overlap_tp},
          .optimizer = {.count_zeros = true},
          .precision = {.dtype = dtype},
          .seed = 5,
          .reduction = {.sharded = layout.sharded,
                        .bucket_size = layout.bucket_size,
                        .average_in_collective = layout.average_in_collective,
                        .overlap_param_gather = layout.overlap_param_gather},
          .report_parameter_norm = true};
}

MicroBatch test_batch(const TestData& data, int64_t vocabulary, int64_t step, FlatRange samples) {
  // Not the default generator, which the rank threads share.
  at::Generator generator = at::detail::createCPUGenerator(100 + step);
  const at::Tensor text = at::randint(0, vocabulary, {data.sequence + 1, test_samples}, generator, at::kLong);
  const at::Tensor mine = text.narrow(1, samples.begin, samples.size());
  const at::Tensor index_SB = at::arange(data.sequence, at::kLong).unsqueeze(1);
  MicroBatch batch{
      .tensors = {{"tokens", mine.narrow(0, 0, data.sequence).contiguous()},
                  {"sequence_index", index_SB.expand({data.sequence, samples.size()}).contiguous()},
                  {"labels", mine.narrow(0, 1, data.sequence).contiguous()},
                  // Equal token counts per micro-batch, so that the means of layouts agree.
                  {"loss_mask", at::ones({data.sequence, samples.size()})}},
      .sample_ids_B = at::arange(samples.begin, samples.end, at::kLong) + step * test_samples};
  if (data.documents)
    batch.tensors.set("cu_seqlens", two_documents(samples.size(), data.sequence, data.sequence / 2 + 1));
  return batch;
}

namespace {

PendingStep run_step(TrainEngine& engine, const Layout& layout, const TestModel& model, int64_t step,
                     const Optimizer::Hyperparameters& hyper) {
  const int64_t share = test_samples / layout.dp;
  const int64_t first = engine.mesh().data_parallel().rank * share;
  const int64_t count = share / layout.microbatches;
  TERATRON_ASSERT(count * layout.microbatches == share, "{}", to_string(layout));
  const auto batches = [&](int64_t i) {
    const int64_t begin = first + i * count;
    return cut_over_context(model.batch(step, {begin, begin + count}), engine.mesh().group(Axis::cp));
  };
  return engine.train_step(batches, {.microbatches = layout.microbatches, .hyper = hyper});
}

TestModel gpt_model(const ModelPlan& plan, const TestData& data) {
  return {plan, [data, vocabulary = plan.vocabulary](int64_t step, FlatRange samples) {
            return test_batch(data, vocabulary, step, samples);
          }};
}

}  // namespace

PendingStep train_step(TrainEngine& engine, const Layout& layout, const TestData& data, int64_t step,
                       const Optimizer::Hyperparameters& hyper) {
  return run_step(engine, layout, gpt_model(engine.options().model, data), step, hyper);
}

void GlobalTensors::add(const StateTensor& part) {
  const std::lock_guard lock(mutex_);
  const at::Tensor numbers = part.read();
  Local& local = parts_[{part.name, part.shard.index}];
  if (!local.values.defined()) {
    const int64_t size = numel(part.shard.local_shape());
    local = {part.shard, at::zeros({size}, numbers.options()), at::zeros({size}, at::kBool)};
  }
  const at::Tensor values = local.values.narrow(0, part.local.begin, part.local.size());
  const at::Tensor present = local.present.narrow(0, part.local.begin, part.local.size());
  EXPECT_TRUE(at::equal(values.masked_select(present), numbers.masked_select(present)))
      << part.name << " differs between ranks that hold the same part";
  values.copy_(numbers);
  present.fill_(true);
}

std::map<std::string, at::Tensor> GlobalTensors::tensors() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, at::Tensor> all;
  for (const auto& [key, local] : parts_) {
    EXPECT_TRUE(local.present.all().item<bool>()) << key.first << " is incomplete";
    at::Tensor& global = all[key.first];
    if (!global.defined()) global = at::zeros(local.shard.global_shape, local.values.options());
    place(local.shard, local.values.view(local.shard.local_shape()), global);
  }
  return all;
}

std::vector<StateTensor> gradients(TrainEngine& engine) {
  std::vector<StateTensor> parts;
  for (const ParamAndGradBuffer& buffer : engine.buffers()) {
    for (const FlatRange& owned : buffer.owned()) {
      for (const ParamAndGradBuffer::Entry& entry : buffer.entries()) {
        const FlatRange part = intersection(owned, entry.range);
        if (part.size() == 0) continue;
        parts.push_back({entry.parameter->name,
                         entry.parameter->shard(),
                         {part.begin - entry.range.begin, part.end - entry.range.begin},
                         part.of(buffer.gradients())});
      }
    }
  }
  return parts;
}

std::vector<StateTensor> weights(TrainEngine& engine) {
  engine.buffers().finish_param_gather();
  std::vector<StateTensor> all;
  for (const Parameter& parameter : engine.parameters().all()) {
    all.push_back({parameter.name,
                   parameter.shard(),
                   {0, parameter.tensor.numel()},
                   parameter.tensor.detach().reshape({-1})});
  }
  return all;
}

Gradients gradients_of(const GPTConfig& config, const Layout& layout, const TestData& data,
                       at::ScalarType dtype) {
  return gradients_of(gpt_model(gpt_plan(config, {}), data), layout, dtype);
}

Gradients gradients_of(const TestModel& model, const Layout& layout, at::ScalarType dtype) {
  Gradients result;
  GlobalTensors global;
  std::mutex mutex;
  run_layout(layout, [&](const Mesh& mesh) {
    TrainEngine engine(engine_options(model.plan, layout, dtype), mesh);
    StepResult step = run_step(engine, layout, model, 3, {.lr = 0.0}).wait();
    if (!model.counts_tokens) step.tokens /= layout.microbatches * layout.dp;
    for (const StateTensor& part : gradients(engine)) global.add(part);
    const std::lock_guard lock(mutex);
    if (result.step.tokens != 0) {  // from another rank: equal on all
      EXPECT_EQ(step.loss, result.step.loss);
      EXPECT_EQ(step.grad_norm, result.step.grad_norm);
      EXPECT_EQ(step.num_zeros, result.step.num_zeros);
    }
    result.step = step;
  });
  result.tensors = global.tensors();
  return result;
}

namespace {

using Errors = std::map<std::string, double>;  // by tensor: Frobenius norm of the difference

Errors errors_of(const Gradients& actual, const Gradients& expected) {
  Errors errors;
  for (const auto& [name, gradient] : expected.tensors) {
    errors[name] = (actual.tensors.at(name).to(gradient.scalar_type()) - gradient).norm().item<double>();
  }
  return errors;
}

// `rounding`: errors that are allowed in any case.
void expect_close(const Gradients& actual, const Gradients& expected, double bound, const Errors& rounding) {
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  // A gradient that is zero in theory (a bias before a softmax) consists of rounding errors.
  double largest = 0.0;
  double slack = 0.0;
  for (const auto& [name, gradient] : expected.tensors) {
    largest = std::max(largest, gradient.norm().item<double>());
    slack += rounding.contains(name) ? rounding.at(name) : 0.0;
  }
  for (const auto& [name, error] : errors_of(actual, expected)) {
    const double norm = expected.tensors.at(name).norm().item<double>();
    const double own = rounding.contains(name) ? rounding.at(name) : 0.0;
    // An expert may have no tokens.
    const bool may_be_unused = name.find(".experts.") != std::string::npos;
    EXPECT_TRUE(norm > 0.0 || may_be_unused) << name;
    EXPECT_LT(error, std::max(bound * std::max(norm, 1e-3 * largest), own)) << name;
  }
  const StepResult& a = actual.step;
  const StepResult& e = expected.step;
  ASSERT_EQ(a.losses.size(), e.losses.size());
  for (size_t i = 0; i < e.losses.size(); ++i) EXPECT_NEAR(a.losses[i], e.losses[i], bound * e.losses[i]);
  EXPECT_NEAR(a.grad_norm, e.grad_norm, bound * e.grad_norm + slack);
  EXPECT_NEAR(a.parameter_norm, e.parameter_norm, bound * e.parameter_norm);
  EXPECT_EQ(a.tokens, e.tokens);
}

}  // namespace

void expect_same(const Gradients& actual, const Gradients& expected, double bound) {
  expect_close(actual, expected, bound, {});
}

void expect_twins(const GPTConfig& config, const Layout& layout, const TestData& data) {
  TestModel model = gpt_model(gpt_plan(config, {}), data);
  model.smooth = config.activation != Activation::relu;
  expect_twins(model, layout);
}

void expect_twins(const TestModel& model, const Layout& layout) {
  const Gradients exact = gradients_of(model, {}, at::kDouble);
  const Gradients serial = gradients_of(model, {}, at::kFloat);
  Errors rounding = errors_of(serial, exact);
  for (auto& [name, error] : rounding) error *= 8.0;
  if (model.smooth) expect_close(gradients_of(model, layout, at::kFloat), serial, 1e-5, rounding);
  for (auto& [name, error] : rounding) error *= 0x1p-29;
  expect_close(gradients_of(model, layout, at::kDouble), exact, 1e-12, rounding);
}

Layout random_layout(const TransformerConfig& config, std::mt19937& random, int64_t ranks) {
  const int64_t groups = config.query_groups;
  Layout layout;
  do {
    layout = {
        .tp = pick(random, {1, 1, 2, 4}), .pp = pick(random, {1, 2, 3, 4}), .dp = pick(random, {1, 2, 4})};
  } while (layout.tp * layout.pp * layout.dp > ranks || (groups % layout.tp != 0 && layout.tp % groups != 0));
  layout.sequence_parallel = layout.tp > 1 && coin(random);
  layout.sharded = coin(random);
  layout.overlap_param_gather = layout.sharded && coin(random);
  layout.average_in_collective = coin(random);
  layout.overlap_p2p = coin(random);
  layout.overlap_tp = coin(random);
  layout.late = coin(random);
  layout.bucket_size = pick(random, {100, 1000, 1'000'000});
  do {
    layout.microbatches = pick(random, {1, 2, 4, 8});
  } while (test_samples / layout.dp % layout.microbatches != 0);
  const bool can_interleave = layout.pp > 1 && layout.microbatches >= layout.pp;
  if (can_interleave && coin(random)) {
    layout.chunks = pick(random, {2, 3});
    layout.group = pick(random, {0, layout.pp, layout.microbatches});
    const ScheduleShape shape{layout.pp, layout.chunks, layout.microbatches, layout.group};
    if (!interleaving_problem(shape).empty()) layout.chunks = 1;
  }
  const int64_t parts = layout.pp * layout.chunks;
  if (config.layers % parts == 0 && coin(random)) return layout;
  do {
    layout.stages = random_stages(config.layers, parts, random);
  } while (!every_stage_holds_something(layout.stages, config.layers, layout.pp));
  return layout;
}

void add_context_parallel(TransformerConfig& config, Layout& layout, int64_t ranks, std::mt19937& random) {
  const int64_t room = ranks / (layout.tp * layout.pp * layout.dp);
  const int64_t shards = layout.sequence_parallel ? layout.tp : 1;
  layout.cp = pick(random, {2, 4});
  while (layout.cp > 1 && (layout.cp > room || TestData().sequence % (2 * layout.cp * shards) != 0))
    layout.cp /= 2;
  const bool divides_heads = config.query_groups % (layout.tp * layout.cp) == 0;
  config.context_parallel_comm.clear();
  for (int64_t i = 0; i < config.layers; ++i) {
    const bool window = !config.windows.empty() && config.windows.at(static_cast<size_t>(i)) > 0;
    const auto comm = static_cast<ContextParallelComm>(random() % 3);
    const bool allowed =
        comm == ContextParallelComm::a2a ? divides_heads : comm != ContextParallelComm::p2p || !window;
    config.context_parallel_comm.push_back(allowed ? comm : ContextParallelComm::all_gather);
  }
}

OffloadConfig random_offload(std::mt19937& random) {
  return {.layers = static_cast<int64_t>(random() % 4), .min_bytes = pick(random, {0, 2000})};
}

RandomCase random_case(std::mt19937& random, int64_t ranks) {
  GPTConfig config = random_config(random);
  config.layers = pick(random, {3, 4, 6});
  if (!config.windows.empty()) config.windows.resize(config.layers, config.windows.back());
  config.fp32_residual = false;  // would round fp64 values
  // A norm over two channels is nearly a sign and magnifies rounding by 1e5.
  if (config.qk_norm) config.kv_channels = 8;
  Layout layout = random_layout(config, random, ranks);
  if (coin(random)) add_context_parallel(config, layout, ranks, random);
  config.recompute = {
      .granularity = static_cast<RecomputeConfig::Granularity>(random() % 3),
      .method = coin(random) ? RecomputeConfig::Method::uniform : RecomputeConfig::Method::block,
      .layers = pick(random, {1, 2}),
      .distribute_inputs = layout.tp > 1 && !layout.sequence_parallel && coin(random)};
  config.offload = random_offload(random);
  config.loss_chunks = pick(random, {1, 1, 2, 3});
  return {config, layout, {.documents = coin(random)}};
}

RandomCases::RandomCases(const Options& options) : options_(options) {
  const char* seed = std::getenv("TERATRON_RANDOM_SEED");
  first_seed_ = seed ? static_cast<uint32_t>(std::atol(seed)) : std::random_device()();
  const char* seconds = std::getenv("TERATRON_RANDOM_SECONDS");
  const double budget = seconds ? std::atof(seconds) : std::getenv("TERATRON_LONG_TESTS") ? 300.0 : 60.0;
  end_ = std::chrono::steady_clock::now() +
         std::chrono::milliseconds(static_cast<int64_t>(1e3 * budget * options.share));
}

RandomCases::~RandomCases() {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  print("{}.{}: {} random cases from TERATRON_RANDOM_SEED={}", test->test_suite_name(), test->name(), cases_,
        first_seed_);
}

std::optional<std::mt19937> RandomCases::next() {
  const bool continues = cases_ < options_.minimum || std::chrono::steady_clock::now() < end_;
  if (!continues || testing::Test::HasFailure()) return std::nullopt;
  ++cases_;
  return std::mt19937(seed());
}

}  // namespace teratron
