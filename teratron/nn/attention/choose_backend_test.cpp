#include "teratron/nn/attention/choose_backend.h"

#include <string>

#include <gtest/gtest.h>

namespace teratron {
namespace {

struct Choice {
  std::string_view backend;
  AttentionShape shape;
};

TEST(ChooseBackend, TakesTheFirstThatSupportsTheShape) {
  const AttentionShape square{.queries = 128, .keys = 128, .width = 64};
  const auto with = [&square](auto change) {
    AttentionShape shape = square;
    change(shape);
    return shape;
  };
  const Choice choices[] = {
      {"cudnn", square},
      {"flash", with([](AttentionShape& s) { s.deterministic = true; })},
      {"flash", with([](AttentionShape& s) { s.window = 64; })},
      {"cudnn", with([](AttentionShape& s) { s.window = 128; })},
      {"flash", with([](AttentionShape& s) { s.queries = 1; })},
      {"flash", with([](AttentionShape& s) { s.queries = 64; })},
      {"cudnn", with([](AttentionShape& s) { s.queries = 64, s.causal = false; })},
      {"flash", with([](AttentionShape& s) { s.width = 256; })},
      {"math", with([](AttentionShape& s) { s.width = 264; })},
      {"math", with([](AttentionShape& s) { s.width = 60; })},
      {"math", with([](AttentionShape& s) { s.dtype = Dtype::f32; })},
      {"flash-varlen", with([](AttentionShape& s) { s.segments = 65'535; })},
      {"fused", with([](AttentionShape& s) { s.segments = 65'536; })},
      {"fused", with([](AttentionShape& s) { s.dropout = 0.1; })},
      {"fused", with([](AttentionShape& s) { s.biased = true; })},
      {"math", with([](AttentionShape& s) { s.biased = true, s.width = 256; })},
      {"math", with([](AttentionShape& s) { s.biased = true, s.fits_fused_kernel = false; })},
      {"flash-cpu", with([](AttentionShape& s) { s.gpu = false, s.segments = 3; })},
      {"math", with([](AttentionShape& s) { s.gpu = false, s.dropout = 0.1; })}};
  for (const Choice& c : choices) {
    EXPECT_EQ(name_of(choose_backend(c.shape)), c.backend) << "case " << &c - choices;
  }
}

}  // namespace
}  // namespace teratron
