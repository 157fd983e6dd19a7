// Model shapes to benchmark, as flags of `teratron pretrain gpt`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

struct BenchShape {
  std::string_view name;
  std::string_view flags;  // separated by spaces
};

std::span<const BenchShape> bench_shapes();
/// Their names, comma-separated.
std::string bench_shape_names();

/// Common flags (mock data, no dropout), then the shape's. UserError(config) for an unknown name.
std::vector<std::string> shape_flags(std::string_view name);

}  // namespace teratron
