#include "teratron/cli/serve/adapter_flags.h"

#include <algorithm>
#include <filesystem>
#include <optional>

namespace teratron {

namespace {

constexpr std::string_view flag = "--lora";

// "NAME=DIR"; nullopt: a folder without a name, which may have such a path.
std::optional<NamedAdapter> named_adapter(const std::string& value) {
  const size_t sign = value.find('=');
  std::error_code ignored;
  if (sign == value.npos || value.find('/') < sign || std::filesystem::exists(value, ignored))
    return std::nullopt;
  return NamedAdapter{.name = value.substr(0, sign), .folder = value.substr(sign + 1)};
}

}  // namespace

AdapterFlags take_adapter_flags(std::span<const std::string> args) {
  AdapterFlags flags;
  for (size_t i = 0; i < args.size(); ++i) {
    const bool has_value = args[i] == flag && i + 1 < args.size();
    const bool is_joined = args[i].starts_with(std::string(flag) + "=");
    const std::string value = has_value ? args[i + 1] : is_joined ? args[i].substr(flag.size() + 1) : "";
    std::optional<NamedAdapter> named = value.empty() ? std::nullopt : named_adapter(value);
    if (!named) {
      flags.others.push_back(args[i]);
      continue;
    }
    const bool is_known = std::ranges::any_of(
        flags.adapters, [&](const NamedAdapter& each) { return each.name == named->name; });
    if (named->name.empty() || named->folder.empty() || is_known) {
      throw config_error({.what = is_known
                                      ? fmt::format("two adapters are called {}", printable(named->name, 80))
                                      : "an adapter has no name or no folder",
                          .where = std::string(flag),
                          .fix = "Write --lora NAME=DIR, each with another name"});
    }
    flags.adapters.push_back(std::move(*named));
    if (has_value) ++i;
  }
  return flags;
}

}  // namespace teratron
