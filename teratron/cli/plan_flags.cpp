#include "teratron/cli/plan_flags.h"

#include <charconv>
#include <cmath>
#include <optional>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// nullopt unless the text is a positive number.
std::optional<double> parse_positive(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  return is_number && value > 0 && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

}  // namespace

GpuMemory parse_gpu_memory(const std::string& text) {
  if (const auto value = parse_positive(text)) return {fmt::format("{} GiB", text), *value};
  if (const Gpu* const gpu = find_gpu(text)) {
    return {fmt::format("{}: {} GiB", gpu->name, gpu->memory), gpu->memory, gpu};
  }
  throw config_error({.what = fmt::format("'{}' is neither a size nor a known GPU", printable(text, 40)),
                      .where = "--gpu-memory",
                      .fix = "Use GiB, such as 80, or one of: " + gpu_names()});
}

}  // namespace teratron
