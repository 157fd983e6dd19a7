// Parameters that are replicated over different ranks, frozen, tied, of another dtype or without a gradient
// in some steps: trained on every layout, they equal one rank's training in fp64.
#include <map>
#include <set>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/comm/host/thread_world.h"
#include "teratron/optim/optimizer.h"
#include "teratron/testing/deferred_world.h"

namespace teratron {
namespace {

constexpr int64_t width = 6, rows = 4, microbatches = 2, steps = 4;
constexpr double rate = 0.05, decay = 0.1, clip = 0.4;

// Sizes of a mesh, or the coordinates of a rank.
struct Point {
  int64_t tp = 1, cp = 1, dp = 1, pp = 1;
  int64_t ep = 1;  // spans cp x dp
};

struct GroupCase {
  Point sizes;
  ParamAndGradBuffer::Options buffers = {};
  bool overlaps = true;  // reductions start during backward
  bool late = false;     // collectives run inside wait()
  bool whole = false;    // the optimizer needs whole parameters
};

// Adam, but no rank owns a part of a parameter.
class WholeAdam : public OptimizerRule {
 public:
  Unit unit() const override { return Unit::matrix; }
  std::vector<RuleState> states() const override { return adam_->states(); }
  void step(const Slice& slice, const StepScalars& scalars) const override { adam_->step(slice, scalars); }

 private:
  std::shared_ptr<const OptimizerRule> adam_ = adam_rule();
};

OptimizerRules rules_of(const GroupCase& c) {
  if (!c.whole) return {{adam_rule()}};
  return {{std::make_shared<WholeAdam>(), [](const Parameter& p) { return p.shard().parts == 1; }},
          {adam_rule()}};
}

bool is_first(const Point& n, const Point& at) {
  return n.pp == 1 || at.pp == 0;
}
bool is_last(const Point& n, const Point& at) {
  return at.pp == n.pp - 1;
}

// Experts are divided over ep and replicated over edp.
std::string expert_of(const Point& n, const Point& at) {
  return "expert" + std::to_string((at.dp * n.cp + at.cp) % n.ep);
}

using Parameters = std::vector<std::pair<std::string, ParameterOptions>>;

// The parameters of one rank. The first and the last stage hold different kinds: others have empty buffers.
Parameters parameters_of(const Point& n, const Point& at) {
  const auto options = [](const Shard& shard, AxisSet axes = replica_axes) {
    return ParameterOptions{.shard = shard, .init = Init::normal(0.5), .replicated_over = axes};
  };
  const ParameterOptions vector = options(Shard::replicated({width}));
  Parameters all{{"stage" + std::to_string(at.pp), vector},
                 {"all_stages", options(Shard::replicated({width}), replica_axes | Axis::pp)}};
  if (is_first(n, at)) {
    const int64_t rank = (at.dp * n.cp + at.cp) * n.tp + at.tp;
    all.emplace_back("dense", options(Shard::replicated({5, width})));
    all.emplace_back("frozen", vector);
    all.back().second.trainable = false;
    all.emplace_back("per_dp", options(Shard::split({n.dp * 3, width}, 0, n.dp, at.dp), Axis::cp));
    all.emplace_back("per_rank",
                     options(Shard::split({n.dp * n.cp * n.tp, width}, 0, n.dp * n.cp * n.tp, rank), {}));
    all.emplace_back("tied", vector);
    all.emplace_back(expert_of(n, at), options(Shard::replicated({width}), Axis::edp));
  }
  if (is_last(n, at)) {
    all.emplace_back("per_cp", options(Shard::split({n.cp, width}, 0, n.cp, at.cp), {Axis::tp, Axis::dp}));
    all.emplace_back("summed", vector);
    all.back().second.grad_sum = Axis::tp;
    all.emplace_back("sometimes", vector);
    all.emplace_back("on_one_rank", vector);
    all.emplace_back("single", vector);
    all.back().second.dtype = at::kFloat;
    if (n.pp > 1) all.emplace_back("tied", vector);
  }
  return all;
}

using Values = std::function<at::Tensor(const std::string& name)>;

at::Tensor input_of(int64_t step, int64_t dp, int64_t microbatch) {
  at::Generator generator = at::detail::createCPUGenerator(100 * step + 10 * dp + microbatch);
  return at::randn({rows, width}, generator, at::kDouble);
}

// Mean loss of a rank's rows: what all its tensor-parallel ranks compute alike, and its own part.
struct Losses {
  at::Tensor common, own;
};
Losses losses(const Point& n, const Point& at, int64_t step, int64_t microbatch, const Values& value) {
  const auto cut = [](const at::Tensor& x, int64_t parts, int64_t index) {
    return x.narrow(0, index * (x.size(0) / parts), x.size(0) / parts);
  };
  const at::Tensor x = cut(input_of(step, at.dp, microbatch), n.cp, at.cp), mine = cut(x, n.tp, at.tp);
  at::Tensor common = (x * value("stage" + std::to_string(at.pp))).cos().sum();
  common = common + (x * value("all_stages")).sin().sum();
  at::Tensor own = at::zeros({}, at::kDouble);
  if (is_first(n, at)) {
    common = common + (x * value("frozen")).matmul(value("dense").t()).tanh().sum() +
             x.matmul(value("per_dp").t()).sin().sum() + (x * value("tied")).tanh().sum() +
             (x * value(expert_of(n, at))).sin().sum();
    own = own + (mine * value("per_rank")).sin().sum();
  }
  if (is_last(n, at)) {
    const at::Tensor sometimes = value("sometimes");  // a use without a gradient in odd steps
    if (step % 2 == 0) common = common + (x * sometimes).tanh().sum();
    if (at.dp == 0) common = common + (x * value("on_one_rank")).tanh().sum();
    common = common + (x.to(at::kFloat) * value("single")).sin().sum().to(at::kDouble);
    own = own + (mine * value("per_cp")).tanh().sum() + (mine * value("summed")).sin().sum();
    if (n.pp > 1) common = common + (x * value("tied")).cos().sum();
  }
  return {common / x.size(0), own / x.size(0)};
}

at::Tensor local_part(const Shard& shard, const at::Tensor& global) {
  const int64_t count = shard.dim < 0 ? 0 : global.size(0) / shard.parts;
  return shard.dim < 0 ? global : global.narrow(0, shard.index * count, count);
}

void for_each_point(const Point& n, const std::function<void(const Point&)>& body) {
  for (int64_t pp = 0; pp < n.pp; ++pp) {
    for (int64_t dp = 0; dp < n.dp; ++dp) {
      for (int64_t cp = 0; cp < n.cp; ++cp) {
        for (int64_t tp = 0; tp < n.tp; ++tp) body({.tp = tp, .cp = cp, .dp = dp, .pp = pp});
      }
    }
  }
}

// One rank with all tensors, AdamW by its formula.
class Twin {
 public:
  explicit Twin(const Point& sizes) : n_(sizes) {
    ParameterSet set({.dtype = at::kDouble, .seed = 3});
    for_each_point(n_, [&](const Point& at) {
      for (auto& [name, options] : parameters_of(n_, at)) {
        if (set.find(name)) continue;
        ParameterOptions whole = options;
        whole.shard = Shard::replicated(options.shard.global_shape);
        const at::Tensor value = set.create(name, whole).tensor.detach().clone();
        tensors_[name] = {.value = value, .first = at::zeros_like(value), .second = at::zeros_like(value)};
        trainable_[name] = options.trainable;
      }
    });
  }

  void step(int64_t step) {
    for (auto& [name, tensor] : tensors_) tensor.value.requires_grad_(trainable_.at(name));
    at::Tensor total = at::zeros({}, at::kDouble);
    for_each_point(n_, [&](const Point& at) {
      std::map<std::string, at::Tensor> parts;
      for (const auto& [name, options] : parameters_of(n_, at)) {
        parts[name] =
            local_part(options.shard, tensors_.at(name).value).to(options.dtype.value_or(at::kDouble));
      }
      for (int64_t i = 0; i < microbatches; ++i) {
        const auto [common, own] = losses(n_, at, step, i, [&](const auto& name) { return parts.at(name); });
        total = total + (at.tp == 0 ? common + own : own);
      }
    });
    loss_ = total / static_cast<double>(n_.dp * n_.cp * microbatches);
    loss_.backward();
    const at::NoGradGuard no_grad;
    norm = 0.0;
    for (auto& [name, tensor] : tensors_) {
      const at::Tensor gradient = tensor.value.grad();
      tensor.gradient = gradient.defined() ? gradient.clone() : at::zeros_like(tensor.value);
      norm += tensor.gradient.square().sum().item<double>();
      tensor.value = tensor.value.detach().clone();
    }
    norm = std::sqrt(norm);
    for (auto& [name, tensor] : tensors_) {
      if (trainable_.at(name)) adamw(tensor, std::min(1.0, clip / (norm + 1e-6)), step + 1.0);
    }
  }

  at::Tensor value(const std::string& name) const { return tensors_.at(name).value; }
  at::Tensor gradient(const std::string& name) const { return tensors_.at(name).gradient; }
  double loss() const { return loss_.item<double>(); }
  double norm = 0.0;
  int64_t zeros() const {
    int64_t count = 0;
    for (const auto& [name, tensor] : tensors_) {
      if (trainable_.at(name)) count += tensor.gradient.eq(0.0).sum().item<int64_t>();
    }
    return count;
  }

 private:
  struct Tensor {
    at::Tensor value, first, second, gradient;
  };
  static void adamw(Tensor& t, double scale, double step) {
    const at::Tensor gradient = t.gradient * scale;
    t.value.mul_(1 - rate * decay);
    t.first.mul_(0.9).add_(0.1 * gradient);
    t.second.mul_(0.999).add_(0.001 * gradient.square());
    const at::Tensor root = t.second.sqrt() / std::sqrt(1 - std::pow(0.999, step)) + 1e-8;
    t.value.sub_(rate / (1 - std::pow(0.9, step)) * t.first / root);
  }

  Point n_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, bool> trainable_;
  at::Tensor loss_;
};

// Clipping is done in fp32.
double tolerance(const Parameter& parameter) {
  return parameter.tensor.scalar_type() == at::kFloat ? 1e-5 : 1e-7;
}

void expect_near(const at::Tensor& actual, const at::Tensor& expected, double bound,
                 const std::string& what) {
  EXPECT_LE((actual.to(at::kDouble) - expected).abs().max().item<double>(), bound) << what;
}

class Rank {
 public:
  Rank(const GroupCase& c, const Mesh& mesh)
      : case_(c),
        mesh_(mesh),
        at_{mesh.group(Axis::tp).rank, mesh.group(Axis::cp).rank, mesh.data_parallel().rank,
            mesh.group(Axis::pp).rank},
        set_({.dtype = at::kDouble, .seed = 3}),
        twin_(c.sizes) {
    for (const auto& [name, options] : parameters_of(c.sizes, at_)) set_.create(name, options);
    ParamAndGradBuffer::Options options = c.buffers;
    options.bucket_size = 20;
    buffers_ =
        std::make_unique<ParamAndGradBuffers>(set_, mesh, options, std::vector<int64_t>{}, rules_of(c));
    optimizer_ = std::make_unique<Optimizer>(*buffers_, mesh,
                                             OptimizerOptions{.clip_grad = clip, .count_zeros = true});
  }

  void train_and_compare(int64_t step) {
    const double loss = backward(step);
    twin_.step(step);
    expect_gradients(step == 0 ? 1e-13 : 1e-8);  // exact until the first update
    const GradStats stats = optimizer_->step({.lr = rate, .weight_decay = decay});
    EXPECT_NEAR(loss, twin_.loss(), 1e-6);  // "single" is fp32
    EXPECT_NEAR(stats.grad_norm.item<double>(), twin_.norm, 1e-6 * twin_.norm);
    EXPECT_EQ(stats.num_zeros.item<double>(), static_cast<double>(twin_.zeros()));
    EXPECT_LT(clip, twin_.norm);
    buffers_->finish_param_gather();
    for (const Parameter& parameter : set_.all()) {
      expect_near(parameter.tensor, local_part(parameter.shard(), twin_.value(parameter.name)),
                  tolerance(parameter), parameter.name);
      EXPECT_EQ(parameter.main_grad.defined(), parameter.options.trainable) << parameter.name;
    }
  }

  size_t buffers() const { return buffers_->size(); }
  std::set<std::string> state_names() const {
    std::set<std::string> names;
    for (const StateTensor& state : optimizer_->state()) names.insert(state.name);
    return names;
  }

 private:
  // Returns the loss of the model.
  double backward(int64_t step) {
    buffers_->zero_grad();
    const int64_t replicas = case_.sizes.dp * case_.sizes.cp;
    const double ranks = case_.buffers.average_in_collective ? 1.0 : static_cast<double>(replicas);
    at::Tensor reported = at::zeros({1}, at::kDouble);
    for (int64_t i = 0; i < microbatches; ++i) {
      const auto [common, own] = losses(case_.sizes, at_, step, i, [&](const std::string& name) {
        return autograd_tensor(*set_.find(name));
      });
      if (case_.overlaps && i == microbatches - 1) buffers_->set_last_microbatch();
      ((common + own) / (ranks * microbatches)).backward();
      reported.add_((at_.tp == 0 ? common + own : own).detach());
    }
    buffers_->finish_grad_sync();
    mesh_.world().communicator->all_reduce(reported, ReduceOp::sum).wait();
    return reported.item<double>() / static_cast<double>(replicas * microbatches);
  }

  // The owned parts, except of gradients that the optimizer completes.
  void expect_gradients(double bound) {
    for (const ParamAndGradBuffer& buffer : *buffers_) {
      for (const ParamAndGradBuffer::Entry& entry : buffer.entries()) {
        const Parameter& parameter = *entry.parameter;
        if (entry.tied.size > 1 || parameter.options.grad_sum != AxisSet()) continue;
        const at::Tensor expected = local_part(parameter.shard(), twin_.gradient(parameter.name)).reshape(-1);
        for (const FlatRange& owned : buffer.owned()) {
          const FlatRange part = intersection(owned, entry.range);
          if (part.size() == 0) continue;
          expect_near(part.of(buffer.gradients()),
                      expected.narrow(0, part.begin - entry.range.begin, part.size()),
                      parameter.tensor.scalar_type() == at::kFloat ? 1e-6 : bound, parameter.name);
        }
      }
    }
  }

  GroupCase case_;
  Mesh mesh_;
  Point at_;
  ParameterSet set_;
  std::unique_ptr<ParamAndGradBuffers> buffers_;
  std::unique_ptr<Optimizer> optimizer_;
  Twin twin_;
};

void run_case(const GroupCase& c, const std::function<void(Rank&)>& body) {
  const auto [tp, cp, dp, pp, ep] = c.sizes;
  run_ranks(tp * cp * dp * pp, [&](World& world) {
    DeferredWorld late(world);
    const Mesh mesh({.tp = tp, .pp = pp, .cp = cp, .ep = ep, .etp = 0, .dp = dp}, c.late ? late : world);
    Rank rank(c, mesh);
    body(rank);
  });
}

void expect_like_one_rank(const std::vector<int>& all_options, bool whole) {
  const Point layouts[] = {{},
                           {.dp = 2},
                           {.tp = 2, .dp = 2},
                           {.cp = 2, .dp = 2},
                           {.pp = 3},
                           {.tp = 2, .cp = 2, .dp = 2},
                           {.tp = 2, .dp = 2, .pp = 2},
                           {.dp = 4, .ep = 2},
                           {.tp = 2, .cp = 2, .dp = 2, .ep = 2}};
  for (const Point& sizes : layouts) {
    for (const int options : all_options) {
      const auto option = [&](int bit) { return (options >> bit & 1) != 0; };
      const GroupCase c{.sizes = sizes,
                        .buffers = {.sharded = option(0),
                                    .average_in_collective = option(1),
                                    .overlap_param_gather = option(0) && option(2)},
                        .overlaps = option(2),
                        .late = option(0) != option(1),
                        .whole = whole};
      SCOPED_TRACE(fmt::format("tp {} cp {} dp {} pp {} ep {}, options {:03b}", sizes.tp, sizes.cp, sizes.dp,
                               sizes.pp, sizes.ep, options));
      run_case(c, [](Rank& rank) {
        for (int64_t step = 0; step < steps; ++step) rank.train_and_compare(step);
      });
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(ReplicaGroups, TrainLikeOneRank) {
  expect_like_one_rank({0, 1, 2, 3, 4, 5, 6, 7}, /*whole=*/false);
}

TEST(ReplicaGroups, TrainWholeParametersLikeOneRank) {
  expect_like_one_rank({0, 1, 7}, /*whole=*/true);
}

// Axes of size 1 do not add buffers: without parallelism there is one per dtype.
TEST(ReplicaGroups, MakeOneBufferForTheSameRanks) {
  run_case({}, [](Rank& rank) { EXPECT_EQ(rank.buffers(), 2); });
  run_case({.sizes = {.dp = 2}}, [](Rank& rank) { EXPECT_EQ(rank.buffers(), 3); });
  run_case({.sizes = {.tp = 2, .dp = 2}}, [](Rank& rank) { EXPECT_EQ(rank.buffers(), 4); });
  run_case({.sizes = {.dp = 4, .ep = 2}}, [](Rank& rank) { EXPECT_EQ(rank.buffers(), 4); });
}

TEST(ReplicaGroups, FrozenParametersHaveNoState) {
  run_case({.sizes = {.dp = 2}}, [](Rank& rank) {
    const std::set<std::string> names = rank.state_names();
    EXPECT_TRUE(names.contains("optimizer.exp_avg.dense"));
    EXPECT_FALSE(names.contains("optimizer.exp_avg.frozen"));
    EXPECT_TRUE(names.contains("optimizer.exp_avg.single"));
  });
}

TEST(ReplicaGroups, SomethingMustBeTrained) {
  ParameterSet set({.seed = 3});
  set.create("frozen", {.shard = Shard::replicated({3}), .trainable = false});
  EXPECT_THROW(ParamAndGradBuffers(set, Mesh(), {}), UserError);
}

}  // namespace
}  // namespace teratron
