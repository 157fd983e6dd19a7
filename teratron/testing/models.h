// Small GPTs and one step of each in any layout and on any device.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "teratron/models/gpt/gpt.h"
#include "teratron/testing/tensors/relative_error.h"

namespace teratron {

struct TestSizes {
  int64_t hidden = 16;
  int64_t ffn_hidden = 24;
  int64_t heads = 4;
  int64_t vocabulary = 37;
  int64_t padded_vocabulary = 40;
  int64_t positions = 8;
};

/// Two layers of GPT-2, without dropout.
GPTConfig gpt2_config(const TestSizes& sizes = {});
/// Two layers of Llama with two query groups.
GPTConfig llama_config(const TestSizes& sizes = {});

struct TestVariant {
  std::string name;
  GPTConfig config;
};
/// The model families, and GPT-2 with dropout.
std::vector<TestVariant> family_variants(const TestSizes& sizes = {});
/// Every layer option at least once.
std::vector<TestVariant> option_variants(const TestSizes& sizes = {});
/// Both.
std::vector<TestVariant> all_variants(const TestSizes& sizes = {});
/// All with three layers, so that units of two have a remainder.
std::vector<TestVariant> deep_variants();
/// A random combination of options.
GPTConfig random_config(std::mt19937& random, const TestSizes& sizes = {});

/// The rank's part of a global batch of four samples. With `documents`, a second document starts in the
/// middle.
MicroBatch test_batch(const GPTConfig& config, const Group& data_parallel, bool documents);
MicroBatch to_device(MicroBatch batch, at::Device device);
/// cu_seqlens of samples with a second document from token `second` on.
at::Tensor two_documents(int64_t samples, int64_t sequence, int64_t second);

struct TestLayout {
  int64_t tp = 1;
  int64_t dp = 1;
  bool sequence_parallel = false;
};

struct TestStep {
  GPTConfig config;
  TestLayout layout = {};
  at::ScalarType dtype = at::kDouble;
  at::Device device = at::kCPU;
  bool documents = false;
  std::optional<Fp8Options> fp8 = {};
};

struct LossAndGrads {
  double loss = 0.0;
  std::map<std::string, at::Tensor> gradients;  // global, on the CPU
};

/// Forward and backward of one global batch.
LossAndGrads run_step(const TestStep& step);

/// Loss and every gradient of the two are bitwise equal.
void expect_same_bits(const TestStep& actual, const TestStep& expected, const std::string& name);

/// Copies one rank's part of a tensor into the global tensor.
void place(const Shard& shard, const at::Tensor& local, const at::Tensor& global);

}  // namespace teratron
