#include "teratron/cli/plan_flags.h"

#include <charconv>
#include <limits>
#include <optional>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// nullopt unless the text is a positive number.
template <typename Number>
std::optional<Number> parse_positive(const std::string& text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  const bool is_finite = value <= std::numeric_limits<Number>::max();
  return is_number && value > 0 && is_finite ? std::optional(value) : std::nullopt;
}

}  // namespace

GpuMemory parse_gpu_memory(const std::string& text) {
  if (const auto value = parse_positive<double>(text)) return {fmt::format("{} GiB", text), *value};
  if (const Gpu* const gpu = find_gpu(text)) {
    return {fmt::format("{}: {} GiB", gpu->name, gpu->memory), gpu->memory, gpu};
  }
  throw config_error({.what = fmt::format("'{}' is neither a size nor a known GPU", printable(text, 40)),
                      .where = "--gpu-memory",
                      .fix = "Use GiB, such as 80, or one of: " + gpu_names()});
}

int64_t parse_count(const std::string& text, const std::string& flag, const std::string& what) {
  if (const auto value = parse_positive<int64_t>(text)) return *value;
  throw config_error({.what = fmt::format("'{}' is not a valid {}", printable(text, 40), what),
                      .where = flag,
                      .fix = "Use a positive number"});
}

}  // namespace teratron
