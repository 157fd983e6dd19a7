#include "teratron/cli/plan_flags.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "teratron/base/error.h"

namespace teratron {

namespace {

struct Unit {
  std::string_view letter;  // "": without a unit
  double gib;
};
constexpr std::array units = {Unit{"", 1.0}, Unit{"g", 1.0}, Unit{"m", 1.0 / 1024}, Unit{"t", 1024.0}};

// In GiB; nullopt unless the text is a positive number with or without a unit.
std::optional<double> parse_size(const std::string& text) {
  double value = 0;
  const char* const last = text.data() + text.size();
  auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || !(value > 0) || !std::isfinite(value)) return std::nullopt;
  if (end != last && *end == ' ') ++end;
  std::string unit;
  for (; end != last; ++end) unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*end)));
  for (const Unit& known : units) {
    const std::string letter(known.letter);
    if (unit == letter || (!letter.empty() && (unit == letter + "b" || unit == letter + "ib"))) {
      return value * known.gib;
    }
  }
  return std::nullopt;
}

}  // namespace

GpuMemory parse_gpu_memory(const std::string& text) {
  if (const auto gib = parse_size(text)) return {fmt::format("{:.6g} GiB", *gib), *gib};
  if (const Gpu* const gpu = find_gpu(text)) {
    return {fmt::format("{}: {} GiB", gpu->name, gpu->memory), gpu->memory, gpu};
  }
  throw config_error({.what = fmt::format("'{}' is neither a size nor a known GPU", printable(text, 40)),
                      .where = "--gpu-memory",
                      .fix = "Use GiB, such as 80, 80GiB, 80GB (the same, as makers of GPUs count) or "
                             "81920MiB, or one of: " +
                             gpu_names()});
}

}  // namespace teratron
