// Models whose speed is compared, as flags of `teratron pretrain gpt`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

struct BenchShape {
  std::string_view name;
  std::string_view flags;  // separated by blanks
};

std::span<const BenchShape> bench_shapes();
/// Their names, separated by commas.
std::string bench_shape_names();

/// The shape's flags after those common to all: mock data, no dropout. Throws UserError(config) for an
/// unknown name.
std::vector<std::string> shape_flags(std::string_view name);

}  // namespace teratron
