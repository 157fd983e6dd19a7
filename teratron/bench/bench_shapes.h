// Model shapes to benchmark, as flags of `teratron pretrain`.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

struct BenchShape {
  std::string_view name;
  std::string_view flags;  // separated by spaces
  std::string_view family = "gpt";
};

std::span<const BenchShape> bench_shapes();
/// Names of those that `has` accepts (null: all), comma-separated.
std::string bench_shape_names(const std::function<bool(const BenchShape&)>& has = nullptr);

/// UserError(config) for an unknown name.
const BenchShape& find_bench_shape(std::string_view name);
/// Common flags (mock data, no dropout), then the shape's.
std::vector<std::string> flags_of(const BenchShape& shape);

}  // namespace teratron
