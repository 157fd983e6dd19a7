#include "teratron/nn/offload/activation_offload.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"
#include "teratron/nn/autograd/autograd.h"
#include "teratron/nn/offload/host_pool.h"
#include "teratron/testing/memory_meter.h"

namespace teratron {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Forward and backward by the schedule, with every copy as late as it may be.
TEST(OffloadSchedule, BoundsTheStepsOnTheDevice) {
  for (int64_t steps = 1; steps <= 9; ++steps) {
    for (int64_t offloaded = 1; offloaded <= steps; ++offloaded) {
      SCOPED_TRACE(fmt::format("{} of {} steps", offloaded, steps));
      const OffloadSchedule schedule{steps, offloaded};
      const int64_t kept = steps - offloaded, bound = std::max<int64_t>(2, kept);
      int64_t in_flight = 0, live = 0;
      for (int64_t step = 0; step < steps; ++step) {
        const bool leaves = step < offloaded;
        EXPECT_LE(in_flight + live + 1, bound) << "in the forward of step " << step;
        live += leaves ? 0 : 1;
        in_flight = std::min(in_flight + (leaves ? 1 : 0), schedule.most_in_flight(step));
      }
      EXPECT_EQ(in_flight, kept == 0 ? 1 : 0) << "the loss needs the last step's soon";
      int64_t first = offloaded;
      for (int64_t step = steps - 1; step >= 0; --step) {
        EXPECT_LE(schedule.first_on_device(step), first) << "what is back stays";
        first = schedule.first_on_device(step);
        EXPECT_LE(first, std::min(step, offloaded)) << "step " << step << " and, one ahead, the one before";
        if (step > 0 && step <= offloaded) {
          EXPECT_LT(first, step) << "the step before is on its way";
        }
        const int64_t kept_now = std::max<int64_t>(0, step + 1 - offloaded);
        EXPECT_LE(kept_now + std::min(step + 1, offloaded) - first, bound) << "in the backward of " << step;
      }
      EXPECT_EQ(first, 0);
    }
  }
}

TEST(SavedTensorScope, CountsOnThisThreadOnly) {
  int made = 0;
  const auto factory = [&] {
    ++made;
    return nullptr;
  };
  {
    const SavedTensorScope outer(factory);
    {
      const SavedTensorScope inner([] { return nullptr; });
      SavedTensorScope::make_hooks();
      EXPECT_EQ(made, 0) << "the innermost counts";
    }
    SavedTensorScope::make_hooks();
    EXPECT_EQ(made, 1);
    std::thread([] { SavedTensorScope::make_hooks(); }).join();
    EXPECT_EQ(made, 1);
  }
  SavedTensorScope::make_hooks();
  EXPECT_EQ(made, 1);
}

// y = x scale; saves x, its transpose, a view of every second column, and a product that backward releases.
struct SaveViews : torch::autograd::Function<SaveViews> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& scale) {
    const at::Tensor odd = x.slice(1, 1, c10::nullopt, 2);
    context->save_for_backward({x, x.t(), odd, scale});
    save_releasable(context, "product", x * 3.0);
    save_releasable(context, "none", at::Tensor());
    return x * scale;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &transposed = saved[1], &odd = saved[2], &scale = saved[3];
    EXPECT_EQ(transposed.strides(), x.t().strides());
    EXPECT_TRUE(at::equal(transposed, x.t()));
    EXPECT_EQ(transposed.storage().data(), x.storage().data()) << "one copy of a storage";
    EXPECT_EQ(odd.strides(), x.slice(1, 1, c10::nullopt, 2).strides());
    EXPECT_TRUE(at::equal(odd, x.slice(1, 1, c10::nullopt, 2)));
    EXPECT_FALSE(release(context, "none").defined());
    EXPECT_TRUE(at::equal(release(context, "product"), x * 3.0));
    return {gradients[0] * scale, (gradients[0] * x).sum().reshape({1})};
  }
};

// A stack of steps, each with a sine before the function above.
struct Stack {
  explicit Stack(int64_t steps, int64_t offloaded, int64_t min_bytes = 0)
      : offload({{steps, offloaded}, min_bytes}), steps(steps) {
    for (int64_t i = 0; i < steps; ++i) scales.push_back(at::full({1}, 1.5).requires_grad_());
  }
  at::Tensor forward(at::Tensor x) {
    const auto pass = offload.begin_pass(at::kCPU);
    for (int64_t i = 0; i < steps; ++i) {
      {
        const auto scope = pass->save_step(i);
        x = SaveViews::apply(x.sin(), scales[static_cast<size_t>(i)]);
      }
      pass->end_step(i, x);
    }
    return x;
  }
  variable_list gradients() {
    variable_list all;
    for (at::Tensor& scale : scales) all.push_back(std::exchange(scale.mutable_grad(), at::Tensor()));
    return all;
  }

  ActivationOffload offload;
  int64_t steps;
  std::vector<at::Tensor> scales;
};

at::Tensor input(int64_t rows = 40) {
  return at::arange(rows * 30, at::kDouble).reshape({rows, 30}).cos().requires_grad_();
}

void expect_equal(const variable_list& actual, const variable_list& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
}

TEST(ActivationOffload, RestoresWhatWasSaved) {
  for (const int64_t steps : {1, 2, 5}) {
    Stack plain(steps, 0);
    const at::Tensor expected_x = input();
    plain.forward(expected_x).sum().backward();
    const variable_list expected = plain.gradients();
    for (int64_t offloaded = 1; offloaded <= steps; ++offloaded) {
      Stack stack(steps, offloaded);
      const at::Tensor x = input();
      stack.forward(x).sum().backward();
      expect_equal(stack.gradients(), expected);
      EXPECT_TRUE(at::equal(x.grad(), expected_x.grad()));
      EXPECT_GT(stack.offload.host_bytes(), 0);
    }
  }
}

// More than one chunk of host memory for a tensor.
TEST(ActivationOffload, CopiesLargeTensors) {
  const int64_t rows = HostPool::chunk_bytes / (30 * 8) + 100;
  Stack plain(2, 0), stack(2, 1);
  plain.forward(input(rows)).sum().backward();
  stack.forward(input(rows)).sum().backward();
  expect_equal(stack.gradients(), plain.gradients());
}

// Each step saves x three times, for sine too, and the product.
TEST(ActivationOffload, FreesTheDevice) {
  const int64_t rows = 1000;
  const auto saved_bytes = [&](int64_t offloaded) {
    Stack stack(6, offloaded);
    stack.forward(input(rows)).sum().backward();  // allocates host memory
    const at::Tensor x = input(rows);
    const MemoryMeter meter;
    const at::Tensor y = stack.forward(x);
    return meter.live() - static_cast<int64_t>(y.nbytes());
  };
  const auto tensor = static_cast<double>(input(rows).nbytes());
  const auto all = static_cast<double>(saved_bytes(0));
  EXPECT_NEAR(all / tensor, 6 * 3 - 1, 0.1) << "the input of the first sine is the caller's";
  for (const int64_t offloaded : {1, 3, 5}) {
    EXPECT_NEAR((all - static_cast<double>(saved_bytes(offloaded))) / tensor, 3.0 * offloaded - 1, 0.1);
  }
  EXPECT_NEAR((all - static_cast<double>(saved_bytes(6))) / tensor, 3.0 * 5 - 1, 0.1)
      << "the last step's copies are in flight";
}

TEST(ActivationOffload, LeavesWhatIsSmallOrHeld) {
  Stack small(4, 4, int64_t{1} << 20);
  small.forward(input()).sum().backward();
  EXPECT_EQ(small.offload.host_bytes(), 0);

  // What the caller holds: parameters, and tensors that steps share.
  ActivationOffload offload({{3, 3}, 0});
  const at::Tensor weight = at::ones({1000}, at::kDouble).requires_grad_();
  const at::Tensor frozen = at::ones({1000}, at::kDouble);
  const auto pass = offload.begin_pass(at::kCPU);
  at::Tensor x = weight;
  for (int64_t i = 0; i < 3; ++i) {
    {
      const auto scope = pass->save_step(i);
      x = (weight * frozen).sum() * x.detach();  // saves weight, frozen and a scalar with x
    }
    pass->end_step(i, x);
  }
  x.sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), frozen * 1000.0 * 1000.0 * 1000.0)) << weight.grad();
}

TEST(ActivationOffload, KeepsSeveralPassesApart) {
  Stack plain(4, 0), stack(4, 3);
  std::vector<at::Tensor> inputs, expected_inputs, outputs;
  for (int64_t i = 0; i < 3; ++i) {
    inputs.push_back((input() + static_cast<double>(i)).detach().requires_grad_());
    expected_inputs.push_back(inputs.back().detach().clone().requires_grad_());
    outputs.push_back(stack.forward(inputs.back()));
  }
  for (const at::Tensor& x : expected_inputs) plain.forward(x).sum().backward();
  // As 1F1B does, and the last one first.
  outputs.push_back(stack.forward(input()));
  outputs[3].sum().backward();
  for (size_t i = 0; i < 3; ++i) outputs[i].sum().backward();
  plain.forward(input()).sum().backward();
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(inputs[i].grad(), expected_inputs[i].grad())) << i;
}

TEST(ActivationOffload, ReusesHostMemory) {
  Stack stack(5, 4);
  stack.forward(input()).sum().backward();
  const int64_t bytes = stack.offload.host_bytes();
  const MemoryMeter meter;
  for (int i = 0; i < 50; ++i) {
    stack.forward(input());  // dropped without backward
    stack.forward(input()).sum().backward();
    stack.gradients();
  }
  EXPECT_EQ(stack.offload.host_bytes(), bytes);
  EXPECT_EQ(meter.live(), 0);
}

TEST(ActivationOffload, GraphsMayOutliveIt) {
  at::Tensor y;
  const at::Tensor x = input(), expected_x = input();
  {
    Stack stack(3, 2);
    y = stack.forward(x);
  }
  y.sum().backward();
  Stack(3, 0).forward(expected_x).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), expected_x.grad()));
}

TEST(ActivationOffload, ReportsMissingHostMemory) {
  const ScopedFaults faults("offload.allocate:throw");
  Stack stack(3, 2);
  try {
    stack.forward(input());
    FAIL();
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.exit_code(), ExitCode::out_of_memory);
    const std::string text = fault.what();
    EXPECT_NE(text.find("no pinned host memory for offloaded activations"), text.npos) << text;
    EXPECT_NE(text.find("--cpu-offloading-num-layers"), text.npos) << text;
  }
}

}  // namespace
}  // namespace teratron
