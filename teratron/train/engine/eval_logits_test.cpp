// --return-logits: what evaluations give a train step and write to files, in every layout as on one rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/testing/models.h"
#include "teratron/testing/train_run.h"
#include "teratron/train/engine/train_step.h"
#include "teratron/train/registry.h"

namespace teratron {
namespace {

class EvalLogitsRun : public SmallRun {
 protected:
  // Without training: the weights are the initial ones, the same in every layout.
  std::vector<std::string> evaluation(const std::string& name, std::vector<std::string> more) const {
    more.insert(more.end(), {"--skip-train", "--eval-iters", "3", "--return-logits"});
    return without(flags(name, more), {"--save", "--load"});
  }
  std::vector<std::string> to_files(const std::string& name, std::vector<std::string> more) const {
    more.insert(more.end(), {"--logits-out", (folder_ / name).string()});
    return evaluation(name, std::move(more));
  }

  at::Tensor read(const std::string& name, const std::string& file, const std::string& tensor) const {
    const SafetensorsFile saved(folder_ / name / file);
    const SafetensorsEntry* const entry = saved.find(tensor);
    EXPECT_NE(entry, nullptr) << tensor;
    at::Tensor values = at::empty(entry->shape, entry->dtype == Dtype::i64 ? at::kLong : at::kFloat);
    saved.read(*entry, 0, entry->bytes, values.mutable_data_ptr());
    return values;
  }
};

constexpr const char* tensor_names[] = {"logits", "labels", "loss_mask"};

TEST_F(EvalLogitsRun, AreInFilesAsOnOneRank) {
  EXPECT_EQ(train(to_files("one", {"--micro-batch-size", "1"})), ExitCode::ok);
  const std::string file = "validation-0000000.safetensors";
  const at::Tensor expected = read("one", "validation-0000000-rank-0.safetensors", "logits");
  EXPECT_EQ(expected.sizes(), (at::IntArrayRef{12, 8, 41}))
      << "3 steps of 4 samples; the vocabulary of 40 tokens and the end";
  // The loss of these logits is the run's.
  const at::Tensor labels = read("one", "validation-0000000-rank-0.safetensors", "labels");
  const at::Tensor logprobs = expected.to(at::kDouble).log_softmax(-1);
  const double loss = -logprobs.gather(-1, labels.unsqueeze(-1)).mean().item<double>();
  EXPECT_NEAR(loss, std::log(41.0), 0.5);
  struct Case {
    const char* name;
    int64_t ranks;
    std::vector<std::string> layout;
  };
  const std::vector<Case> cases = {{"dp", 2, {}},
                                   {"tp", 2, {"--tp", "2", "--sequence-parallel"}},
                                   {"pp", 2, {"--pp", "2"}},
                                   {"cp", 2, {"--cp", "2"}},
                                   {"all", 8, {"--tp", "2", "--pp", "2"}}};
  for (const auto& [name, ranks, layout] : cases) {
    SCOPED_TRACE(name);
    std::vector<std::string> more = layout;
    more.insert(more.end(), {"--micro-batch-size", "1", "--gather-logits"});
    EXPECT_EQ(train(to_files(name, more), ranks), ExitCode::ok);
    for (const char* tensor : tensor_names) {
      const at::Tensor values = read(name, file, tensor);
      const at::Tensor one = read("one", "validation-0000000-rank-0.safetensors", tensor);
      ASSERT_EQ(values.sizes(), one.sizes()) << tensor;
      EXPECT_LT(relative_error(values, one), 1e-5) << tensor;
    }
  }
}

TEST_F(EvalLogitsRun, EachDataParallelRankHasAFile) {
  EXPECT_EQ(train(to_files("all", {"--micro-batch-size", "1", "--gather-logits"}), 2), ExitCode::ok);
  EXPECT_EQ(train(to_files("each", {"--micro-batch-size", "1"}), 2), ExitCode::ok);
  EXPECT_FALSE(fs::exists(folder_ / "each" / "validation-0000000.safetensors"));
  for (const char* tensor : tensor_names) {
    const at::Tensor all = read("all", "validation-0000000.safetensors", tensor);
    const at::Tensor first = read("each", "validation-0000000-rank-0.safetensors", tensor),
                     second = read("each", "validation-0000000-rank-1.safetensors", tensor);
    EXPECT_TRUE(at::equal(at::stack({first, second}, 1).flatten(0, 1), all)) << tensor;
  }
}

// A whole split of which one rank has more: each sample once, in order.
TEST_F(EvalLogitsRun, OfAWholeSplit) {
  const std::vector<std::string> whole = {"--full-validation", "--micro-batch-size", "1", "--gather-logits"};
  const std::string said = stdout_of(to_files("one", whole));
  EXPECT_EQ(train(to_files("two", whole), 2), ExitCode::ok);
  const auto files = [this](const char* name) {
    std::vector<std::string> found;
    for (const auto& file : fs::directory_iterator(folder_ / name))
      found.push_back(file.path().filename().string());
    std::ranges::sort(found);
    return found;
  };
  ASSERT_EQ(files("one"), files("two"));
  const at::Tensor one = read("one", "validation-0000000.safetensors", "logits"),
                   two = read("two", "validation-0000000.safetensors", "logits");
  ASSERT_EQ(one.sizes(), two.sizes());
  EXPECT_LT(relative_error(two, one), 1e-6);
}

// A program's train step: its accuracy, from logits, is that of the files.
class Accuracy : public ModelLosses {
 public:
  struct Count {
    std::mutex mutex;
    int64_t right = 0, all = 0, trained = 0;
  };
  explicit Accuracy(Count& count) : count_(count) {}
  void on_logits(const at::Tensor& logits_SBV, const MicroBatch& batch) override {
    const std::lock_guard lock(count_.mutex);
    count_.right += logits_SBV.argmax(-1).eq(batch["labels"]).sum().item<int64_t>();
    count_.all += batch["labels"].numel();
    count_.trained += batch.training ? 1 : 0;
  }

 private:
  Count& count_;
};

TEST_F(EvalLogitsRun, GoToATrainStep) {
  Accuracy::Count count;
  const Registry registry{
      .train_step = [&count](const Registry::Context&) { return std::make_unique<Accuracy>(count); }};
  EXPECT_EQ(train(to_files("run", {"--micro-batch-size", "1", "--gather-logits", "--pp", "2"}), 4, registry),
            ExitCode::ok);
  EXPECT_EQ(count.all, 2 * 12 * 8) << "validation and test";
  EXPECT_EQ(count.trained, 0);
  int64_t right = 0;
  for (const char* file : {"validation-0000000.safetensors", "test-0000000.safetensors"})
    right += read("run", file, "logits").argmax(-1).eq(read("run", file, "labels")).sum().item<int64_t>();
  EXPECT_EQ(count.right, right);
  // Without the flag there are none.
  count.all = 0;
  EXPECT_EQ(train(without(flags("none", {"--skip-train"}), {"--save", "--load"}), 1, registry), ExitCode::ok);
  EXPECT_EQ(count.all, 0);
  EXPECT_NE(stderr_of(evaluation("notice", {})).find("--return-logits has no effect"), std::string::npos);
}

}  // namespace
}  // namespace teratron
