#include "teratron/nn/attention/rope.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

nlohmann::json fixture(const char* kind) {
  return testing::read_json(testing::fixture("core/rope_scaling.json")).at(kind);
}

// The table's cosines, then sines, at a position, in fp64.
at::Tensor table_row(const RotaryConfig& config, int64_t width, int64_t position) {
  const RotaryEmbedding rope({.config = config, .head_width = width, .positions = position + 1}, at::kDouble);
  at::Tensor x = at::zeros({1, 1, 1, width}, at::kDouble);
  x.narrow(-1, 0, width / 2).fill_(1.0);
  return rope.rotate(x, at::full({1, 1}, position, at::kLong)).flatten();
}

void expect_angles(const at::Tensor& row, const nlohmann::json& expected, double magnitude) {
  const at::Tensor angles =
      at::tensor(expected.get<std::vector<double>>(), at::kDouble).narrow(0, 0, row.numel() / 2);
  const at::Tensor both = at::cat({angles.cos(), angles.sin()}) * magnitude;
  EXPECT_TRUE(row.allclose(both, 0.0, 2e-6)) << (row - both).abs().max();
}

// What Megatron-LM computes.
TEST(Rope, ScalesAsLlama3) {
  for (const auto& c : fixture("llama31")) {
    const RotaryConfig config = {.base = c["base"], .llama3_factor = c["factor"]};
    expect_angles(table_row(config, c["dim"], 1), c["inv_freq"], 1.0);
  }
}

TEST(Rope, ScalesAsYarn) {
  for (const auto& c : fixture("yarn")) {
    const RotaryConfig config = {.base = c["base"],
                                 .yarn = {.factor = c["factor"],
                                          .positions = c["original_max"],
                                          .beta_fast = c["beta_fast"],
                                          .beta_slow = c["beta_slow"],
                                          .mscale = c["mscale"],
                                          .mscale_all_dim = c["mscale_all_dim"]}};
    expect_angles(table_row(config, c["dim"], 7), c["angles_position_7"], c["output_mscale"]);
  }
}

TEST(Rope, YarnOfOneChangesNothing) {
  const RotaryConfig plain, one = {.yarn = {.factor = 1.0, .positions = 16.0}};
  EXPECT_TRUE(table_row(one, 32, 5).equal(table_row(plain, 32, 5)));
}

}  // namespace
}  // namespace teratron
