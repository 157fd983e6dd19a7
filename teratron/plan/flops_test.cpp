#include "teratron/plan/flops.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

/// Counts every GEMM of the model: 2 m n k each, one forward and two backward.
double counted_flops(const ModelShape& m, double samples, double length, double share_of_scores) {
  const double tokens = samples * length;
  const double h = double(m.hidden);
  const double q = double(m.heads * m.kv_channels);
  const double kv = double(m.query_groups * m.kv_channels);
  const auto gemm = [](double rows, double inner, double columns) { return 2.0 * rows * inner * columns; };
  double layer = gemm(tokens, h, q + 2.0 * kv) + gemm(tokens, q, h);
  layer +=
      share_of_scores * 2.0 * samples * gemm(length, q, length);  // scores, and their product with the values
  layer +=
      m.swiglu ? 3.0 * gemm(tokens, h, double(m.ffn_hidden)) : 2.0 * gemm(tokens, h, double(m.ffn_hidden));
  return 3.0 * (double(m.layers) * layer + gemm(tokens, h, double(m.padded_vocab)));
}

constexpr ModelShape kGpt3 = {.layers = 96,
                              .hidden = 12288,
                              .heads = 96,
                              .kv_channels = 128,
                              .query_groups = 96,
                              .ffn_hidden = 4 * 12288,
                              .padded_vocab = 51200};
constexpr ModelShape kGrouped = {.layers = 32,
                                 .hidden = 4096,
                                 .heads = 32,
                                 .kv_channels = 128,
                                 .query_groups = 8,
                                 .ffn_hidden = 14336,
                                 .padded_vocab = 128256,
                                 .swiglu = true};

TEST(Flops, MatchesTheCountOfGemms) {
  for (const ModelShape& model : {kGpt3, kGrouped}) {
    const double causal = training_flops(model, {.samples = 16, .sequence_length = 2048});
    EXPECT_NEAR(causal / counted_flops(model, 16, 2048, 0.5), 1.0, 1e-12);
    const double full =
        training_flops(model, {.samples = 16, .sequence_length = 2048}, FlopsConvention::full);
    EXPECT_NEAR(full / counted_flops(model, 16, 2048, 1.0), 1.0, 1e-12);
  }
}

TEST(Flops, MatchesThePublishedFormulaOfGpt3) {
  // 72 B L l h^2 (1 + L / 6h + V / 12lh), Narayanan et al. 2021 (arXiv:2104.04473) without recomputation.
  const double b = 1536, l = 2048, h = 12288, n = 96, v = 51200;
  const double paper = 72 * b * l * n * h * h * (1 + l / (6 * h) + v / (12 * n * h));
  const double ours =
      training_flops(kGpt3, {.samples = 1536, .sequence_length = 2048}, FlopsConvention::full);
  EXPECT_NEAR(ours / paper, 1.0, 1e-12);
}

TEST(Flops, ExpertsPackingAndPrediction) {
  ModelShape moe = kGrouped;
  moe.moe_layers = moe.layers;
  moe.moe_ffn_hidden = moe.ffn_hidden / 2;
  moe.moe_top_k = 2;
  const BatchShape batch = {.samples = 4, .sequence_length = 512};
  EXPECT_DOUBLE_EQ(training_flops(moe, batch), training_flops(kGrouped, batch))
      << "two half experts are one MLP";
  moe.moe_shared_ffn_hidden = 1000;
  const double shared = 4.0 * 512 * 6 * 4096 * 3 * 1000 * 32;
  EXPECT_NEAR(training_flops(moe, batch) - training_flops(kGrouped, batch), shared, shared * 1e-9);

  BatchShape packed = batch;
  packed.squared_lengths = 4.0 * 2 * 256 * 256;  // two documents per sample: half the scores
  const double scores = 6.0 * 32 * 4096 * 4 * 512 * 512;
  EXPECT_NEAR(training_flops(kGrouped, batch) - training_flops(kGrouped, packed), scores / 2, scores * 1e-9);

  ModelShape predicting = kGrouped;
  predicting.mtp_layers = 1;
  const double h = 4096;
  const double more = 4.0 * 512 * (6 * (3 * h + 2 * h * h) + 6 * h * 128256);
  EXPECT_NEAR(training_flops(predicting, batch) - training_flops(kGrouped, batch), more, more * 1e-9);
}

TEST(Flops, ThroughputAndPeak) {
  const Throughput rate =
      throughput({.flops = 8e15, .seconds = 2.0, .world_size = 8, .peak_flops_per_gpu = 1e15});
  EXPECT_DOUBLE_EQ(rate.tflops_per_gpu, 500.0);
  EXPECT_DOUBLE_EQ(rate.mfu, 0.5);
  EXPECT_EQ(throughput({.flops = 1.0, .seconds = 0.0}).tflops_per_gpu, 0.0);
  EXPECT_EQ(throughput({.flops = 1.0, .seconds = 1.0}).mfu, 0.0) << "unknown peak";

  EXPECT_EQ(peak_flops("NVIDIA H200", MathMode::half), 989.4e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 PCIe", MathMode::half), 756e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3", MathMode::fp8), 1978.9e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-80GB", MathMode::half), 312e12);
  EXPECT_FALSE(peak_flops("NVIDIA A100-SXM4-80GB", MathMode::fp8));
  EXPECT_FALSE(peak_flops("cpu", MathMode::fp32));
}

}  // namespace
}  // namespace teratron
