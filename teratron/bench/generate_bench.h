// Speed of generation: random weights of a shape, random prompts of one length, greedy tokens without an end.
//
// Decoding one batch of tokens reads all weights and the keys and values so far. Divided by the bandwidth of
// a copy, measured in the same run, these bytes give the limit.
#pragma once

#include <string>

#include "teratron/bench/kernel_breakdown.h"
#include "teratron/comm/mesh/mesh.h"
#include "teratron/models/precision.h"
#include "teratron/settings/arguments.h"

namespace teratron {

struct GenerateBenchOptions {
  std::string name;
  std::string family = "gpt";
  int64_t batch = 1;
  int64_t prompt = 512;      // tokens, of an encoder's source if there is one
  int64_t new_tokens = 256;  // of each sequence
  bool graphs = true;
  int64_t profiled_steps = 0;  // of decoding, under the profiler, after the timed run; on GPUs
};

struct GenerateBenchResult {
  std::string name;
  std::string device;
  int64_t world_size = 1;
  int64_t batch = 0, prompt = 0, new_tokens = 0;
  double first_token_seconds = 0.0;    // until all sequences have their first
  int64_t decoded_tokens = 0;          // from then on until the first sequence ends
  double decode_seconds = 0.0;         // of these
  double bytes_per_step = 0.0;         // of a rank: weights, and keys and values in the middle of the answer
  double copy_bytes_per_second = 0.0;  // read plus written
  /// Speed of the layers over the prompts as micro-batches of training, which read no pages. 0 with an
  /// encoder or several pipeline stages.
  double forward_tokens_per_second = 0.0;
  int64_t profiled_steps = 0;
  KernelBreakdown breakdown = {};  // of these steps
  std::vector<KernelTotal> kernels = {};

  double tokens_per_second() const;
  double share_of_limit() const;
  double prompt_tokens_per_second() const;
};

/// After one run to warm up. Collective over `mesh`, whose ranks share one model; bytes are this rank's.
GenerateBenchResult bench_generate(const Arguments& given, const GenerateBenchOptions& options,
                                   const Mesh& mesh);

std::string to_string(const GenerateBenchResult& result);
std::string to_json(const GenerateBenchResult& result);

}  // namespace teratron
