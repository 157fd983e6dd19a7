// A server with random weights of a shape, for load generators such as bench/serve_load.py. Prompts are ids,
// and texts their numbers (NullTokenizer).
#pragma once

#include <functional>
#include <string>

#include "teratron/settings/arguments.h"

namespace teratron {

struct ServeBenchOptions {
  std::string name;
  std::string family = "gpt";
  int64_t batch = 64;      // sequences at once
  int64_t longest = 2048;  // tokens of a sequence
  int port = 0;            // 0: any
};

/// Until `should_stop`. On one rank.
void bench_serve(const Arguments& args, const ServeBenchOptions& options,
                 const std::function<bool()>& should_stop);

}  // namespace teratron
