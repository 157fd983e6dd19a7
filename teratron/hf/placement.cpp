#include "teratron/hf/placement.h"

#include <fmt/ranges.h>

#include "teratron/hf/float_convert.h"

namespace teratron {

void Unplaced::problem(const std::string& name, const std::string& what) {
  problems.push_back({fmt::format("tensor \"{}\" {}", printable(name), what), where, {}});
}

std::optional<Dtype> Unplaced::place(const std::string& name, const std::vector<int64_t>& shape) {
  const auto found = tensors.extract(name);
  if (found.empty()) {
    problem(name, "is missing");
    return std::nullopt;
  }
  const auto& [dtype, found_shape] = found.mapped();
  if (found_shape != shape || !is_convertible_float(dtype))
    problem(name, fmt::format("is {} [{}], {} F64, F32, BF16 or F16 [{}]", name_of(dtype),
                              fmt::join(found_shape, ", "), but, fmt::join(shape, ", ")));
  return dtype;
}

}  // namespace teratron
