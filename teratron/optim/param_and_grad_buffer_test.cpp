// Ranges of parameters in flat buffers, and when buckets are communicated.
#include "teratron/optim/param_and_grad_buffer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "teratron/kernels/optimizer/optimizer_step.h"
#include "teratron/testing/worlds.h"

namespace teratron {

bool operator==(const FlatRange& a, const FlatRange& b) {
  return a.begin == b.begin && a.end == b.end;
}
void PrintTo(const FlatRange& range, std::ostream* out) {
  *out << fmt::format("[{}, {})", range.begin, range.end);
}

namespace {

using Ranges = std::vector<FlatRange>;
using Notes = std::vector<std::string>;

// The second of two ranks; records calls without communication.
class Recorder final : public Communicator {
 public:
  Notes notes;

  int64_t rank() const override { return 1; }
  int64_t size() const override { return 2; }
  Work all_reduce(at::Tensor tensor, ReduceOp) override { return note("reduce", tensor); }
  Work reduce_scatter(at::Tensor, at::Tensor input, ReduceOp) override { return note("reduce", input); }
  Work all_gather(at::Tensor output, at::Tensor) override { return note("gather", output); }
  Work broadcast(at::Tensor tensor, int64_t) override { return note("broadcast", tensor); }
  Work all_to_all(at::Tensor output, at::Tensor) override { return note("all_to_all", output); }
  Work batch_isend_irecv(std::vector<P2POp>) override { return {}; }
  void send_bytes(int64_t, const std::string&) override {}
  std::string receive_bytes(int64_t) override { return ""; }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override { return {bytes, bytes}; }
  std::vector<std::string> gather_bytes(const std::string&) override { return {}; }
  std::string broadcast_bytes(const std::string& bytes) override { return bytes; }
  void barrier() override {}
  void abort(const std::string&) override {}

 private:
  Work note(std::string_view what, const at::Tensor& part) {
    const std::string text = fmt::format("{} {}+{}", what, part.storage_offset(), part.numel());
    notes.push_back(text);
    return Work([this, text] { notes.push_back("wait: " + text); });
  }
};

// Four parameters of the given sizes.
struct FourParameters {
  explicit FourParameters(std::array<int64_t, 4> sizes, const ParamAndGradBuffer::Replicas& replicas = {},
                          ParamAndGradBuffer::Options options = {}, int64_t tied = -1) {
    const Scope scope(parameters);
    std::vector<ParamAndGradBuffer::Entry> all;
    for (int64_t i = 0; i < 4; ++i) {
      Parameter& parameter =
          scope.parameter(std::string(1, static_cast<char>('a' + i)),
                          {.shard = Shard::replicated({sizes[i]}), .init = Init::normal(1.0)});
      all.push_back({.parameter = &parameter});
      if (i == tied) all.back().tied.size = 2;
      values.push_back(parameter.tensor.detach().clone());
    }
    options.bucket_size = 150;
    flat = std::make_unique<ParamAndGradBuffer>(all, replicas, values[0].options(), options);
  }
  Parameter& operator[](size_t i) { return parameters.all()[i]; }

  ParameterSet parameters;
  std::vector<at::Tensor> values;  // before they are moved
  std::unique_ptr<ParamAndGradBuffer> flat;
};

ParamAndGradBuffer::Replicas second_of_two(const std::shared_ptr<Recorder>& recorder) {
  return {.group = {.rank = 1, .size = 2, .ranks = {0, 1}, .communicator = recorder}};
}

TEST(ParamAndGradBuffer, AlignsParametersInReverseOrder) {
  FourParameters buffer({10, 70, 64, 100});
  const std::vector<ParamAndGradBuffer::Entry>& entries = buffer.flat->entries();
  const Ranges expected{{0, 100}, {128, 192}, {192, 262}, {320, 330}};
  ASSERT_EQ(entries.size(), expected.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    SCOPED_TRACE(i);
    const Parameter& parameter = *entries[i].parameter;
    EXPECT_EQ(&parameter, &buffer[3 - i]);
    EXPECT_EQ(entries[i].range, expected[i]);
    EXPECT_EQ(entries[i].range.begin % optimizer_block, 0);
    EXPECT_TRUE(at::equal(parameter.tensor, buffer.values[3 - i]));
    EXPECT_TRUE(parameter.tensor.is_alias_of(buffer.flat->parameters()));
    EXPECT_EQ(parameter.tensor.storage_offset(), expected[i].begin);
    EXPECT_TRUE(parameter.main_grad.is_alias_of(buffer.flat->gradients()));
    EXPECT_EQ(parameter.main_grad.storage_offset(), expected[i].begin);
  }
}

// A bucket ends after the parameter that fills it (150 elements here), padded to whole blocks on every rank.
TEST(ParamAndGradBuffer, SlicesBucketsEquallyIntoWholeBlocks) {
  const std::array<int64_t, 4> sizes{10, 70, 64, 100};
  EXPECT_EQ(FourParameters(sizes).flat->owned(), (Ranges{{0, 192}, {192, 384}}));

  const ParamAndGradBuffer::Replicas replicas = second_of_two(std::make_shared<Recorder>());
  const FourParameters whole(sizes, replicas);
  EXPECT_EQ(whole.flat->owned(), (Ranges{{0, 256}, {256, 512}}));
  EXPECT_EQ(whole.flat->gradients().numel(), 512);
  EXPECT_EQ(FourParameters(sizes, replicas, {.sharded = true}).flat->owned(),
            (Ranges{{128, 256}, {384, 512}}));
}

TEST(ParamAndGradBuffer, HasASeparateBucketForATiedParameter) {
  EXPECT_EQ(FourParameters({10, 70, 64, 100}, {}, {}, 2).flat->owned(),
            (Ranges{{0, 128}, {128, 192}, {192, 384}}));
}

// Forward and backward of a product of the parameters; records when backward reaches the second one.
void run_microbatch(FourParameters& buffer, Notes& notes) {
  at::Tensor product = at::ones({100});
  for (size_t i = 0; i < 4; ++i) {
    product = product * autograd_tensor(buffer[i]);
    if (i == 1) product.register_hook([&](const at::Tensor&) { notes.emplace_back("backward reaches b"); });
  }
  product.sum().backward();
  notes.emplace_back("backward is done");
}

TEST(ParamAndGradBuffer, ReducesBucketsDuringTheLastBackward) {
  for (const bool sharded : {false, true}) {
    const auto recorder = std::make_shared<Recorder>();
    FourParameters buffer({100, 100, 100, 100}, second_of_two(recorder), {.sharded = sharded});
    for (int64_t step = 0; step < 2; ++step) {
      recorder->notes.clear();
      buffer.flat->zero_grad();
      run_microbatch(buffer, recorder->notes);
      buffer.flat->set_last_microbatch();
      run_microbatch(buffer, recorder->notes);
      buffer.flat->finish_grad_sync();
      EXPECT_EQ(recorder->notes,
                (Notes{"backward reaches b", "backward is done", "reduce 0+256", "backward reaches b",
                       "reduce 256+256", "backward is done", "wait: reduce 0+256", "wait: reduce 256+256"}));
    }
  }
}

TEST(ParamAndGradBuffer, ReducesUnusedParametersAtTheEnd) {
  const auto recorder = std::make_shared<Recorder>();
  FourParameters buffer({100, 100, 100, 100}, second_of_two(recorder));
  buffer.flat->zero_grad();
  buffer.flat->set_last_microbatch();
  autograd_tensor(buffer[2]).sum().backward();
  EXPECT_EQ(recorder->notes, Notes{});
  buffer.flat->finish_grad_sync();
  EXPECT_EQ(recorder->notes,
            (Notes{"reduce 0+256", "reduce 256+256", "wait: reduce 0+256", "wait: reduce 256+256"}));
}

// Ranks that use different parameters must not reduce different buckets at the same time.
TEST(ParamAndGradBuffer, ReducesBucketsInFixedOrder) {
  const auto recorder = std::make_shared<Recorder>();
  FourParameters buffer({100, 100, 100, 100}, second_of_two(recorder));
  buffer.flat->zero_grad();
  buffer.flat->set_last_microbatch();
  (autograd_tensor(buffer[0]) * autograd_tensor(buffer[1])).sum().backward();  // all of the second bucket
  EXPECT_EQ(recorder->notes, Notes{});
  autograd_tensor(buffer[3]).sum().backward();
  autograd_tensor(buffer[2]).sum().backward();
  EXPECT_EQ(recorder->notes, (Notes{"reduce 0+256", "reduce 256+256"}));
}

// A use whose output does not reach the loss delays no later step.
TEST(ParamAndGradBuffer, ForgetsUsesWithoutAGradient) {
  const auto recorder = std::make_shared<Recorder>();
  FourParameters buffer({100, 100, 100, 100}, second_of_two(recorder));
  for (const bool wasted : {true, false}) {
    recorder->notes.clear();
    buffer.flat->zero_grad();
    buffer.flat->set_last_microbatch();
    if (wasted) autograd_tensor(buffer[3]);
    run_microbatch(buffer, recorder->notes);
    buffer.flat->finish_grad_sync();
    EXPECT_EQ(recorder->notes[0], wasted ? "backward reaches b" : "reduce 0+256");
    EXPECT_TRUE(at::equal(buffer[3].main_grad, buffer.values[0] * buffer.values[1] * buffer.values[2]));
  }
}

TEST(ParamAndGradBufferDeathTest, RejectsGradientsAfterTheReduction) {
  const auto recorder = std::make_shared<Recorder>();
  FourParameters buffer({100, 100, 100, 100}, second_of_two(recorder));
  buffer.flat->zero_grad();
  buffer.flat->set_last_microbatch();
  run_microbatch(buffer, recorder->notes);
  EXPECT_DEATH(autograd_tensor(buffer[3]).sum().backward(), "d gets a gradient after its reduction");
}

// Gradients are averaged over the replicas of the run, not over the buffer's own ranks.
TEST(ParamAndGradBuffer, ScalesGradientsToTheReplicasOfTheRun) {
  ParamAndGradBuffer::Replicas replicas = second_of_two(std::make_shared<Recorder>());
  replicas.share = 0.25;  // two of eight
  for (const bool average : {false, true}) {
    FourParameters buffer({100, 100, 100, 100}, replicas, {.average_in_collective = average});
    buffer.flat->zero_grad();
    autograd_tensor(buffer[3]).sum().backward();
    buffer.flat->finish_grad_sync();
    EXPECT_TRUE(at::equal(buffer[3].main_grad, at::full({100}, average ? 0.25 : 1.0)));
  }
}

TEST(ParamAndGradBuffer, GathersInTheOrderOfForward) {
  for (const bool overlap : {false, true}) {
    const auto recorder = std::make_shared<Recorder>();
    FourParameters buffer({100, 100, 100, 100}, second_of_two(recorder),
                          {.sharded = true, .overlap_param_gather = overlap});
    buffer.flat->gather_params();
    recorder->notes.emplace_back("forward");
    for (size_t i = 0; i < 4; ++i) autograd_tensor(buffer[i]);
    const Notes overlapped{"gather 256+256", "gather 0+256", "forward", "wait: gather 256+256",
                           "wait: gather 0+256"};
    const Notes before{"gather 256+256", "gather 0+256", "wait: gather 0+256", "wait: gather 256+256",
                       "forward"};
    EXPECT_EQ(recorder->notes, overlap ? overlapped : before);
  }
}

// The second rank has skipped a layer: buckets of one size must not be summed.
TEST(ParamAndGradBuffer, RanksWithDifferentModelsFailByBucket) {
  for (const bool sharded : {false, true}) {
    const std::string fault = fault_over_sockets(2, [&](World& world, Communicator&) {
      ParameterSet parameters;
      const Scope scope(parameters);
      std::vector<ParamAndGradBuffer::Entry> entries;
      const int64_t skipped = world.rank() == 0 ? -1 : 1;
      for (int64_t layer = 0; layer < 3; ++layer) {
        if (layer == skipped) continue;
        Parameter& parameter =
            scope.parameter(fmt::format("layers.{}.weight", layer),
                            {.shard = Shard::replicated({128}), .init = Init::normal(1.0)});
        entries.push_back({.parameter = &parameter});
      }
      const ParamAndGradBuffer::Replicas replicas{
          .group = {.rank = world.rank(), .size = 2, .ranks = {0, 1}, .communicator = world.group({0, 1})}};
      ParamAndGradBuffer buffer(entries, replicas, at::TensorOptions(at::kFloat),
                                {.sharded = sharded, .bucket_size = 128});
      buffer.zero_grad();
      buffer.set_last_microbatch();
      buffer.finish_grad_sync();
    });
    const std::string call = sharded ? "reduce_scatter(sum)" : "all_reduce(sum)";
    const std::string shape = sharded ? "fp32 [64]" : "fp32 [128]";
    EXPECT_EQ(fault,
              fmt::format("the ranks of group [0 1] differ at their collective 2: rank 0: {0} of bucket 1 "
                          "(layers.1.weight) {1}; rank 1: {0} of bucket 1 (layers.0.weight) {1}",
                          call, shape));
  }
}

}  // namespace
}  // namespace teratron
