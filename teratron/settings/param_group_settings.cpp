#include "teratron/settings/param_group_settings.h"

#include <charconv>
#include <cmath>

namespace teratron {

std::optional<LrMult> lr_mult_from(const std::string& text) {
  const size_t equals = text.rfind('=');
  LrMult value{.pattern = equals == text.npos ? "" : text.substr(0, equals)};
  if (equals == 0) return std::nullopt;
  const char* const begin = text.data() + (equals == text.npos ? 0 : equals + 1);
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, value.factor);
  const bool valid =
      error == std::errc() && stop == end && std::isfinite(value.factor) && value.factor >= 0.0;
  return valid ? std::optional(value) : std::nullopt;
}

std::vector<ParamGroupRule> param_group_rules(const Arguments& args,
                                              const std::vector<std::string>& head_patterns) {
  std::vector<ParamGroupRule> rules;
  if (!args.no_wd_decay_cond.empty())
    rules.push_back({.patterns = {"*"}, .change = {.weight_decay_mult = 1.0}, .where = "--no-wd-decay-cond"});
  for (const std::string& pattern : args.no_wd_decay_cond)
    rules.push_back(
        {.patterns = {pattern}, .change = {.weight_decay_mult = 0.0}, .where = "--no-wd-decay-cond"});
  if (args.no_weight_decay_cond_type)
    rules.push_back({.patterns = {"*.q_layernorm.*", "*.k_layernorm.*"},
                     .change = {.weight_decay_mult = 1.0},
                     .where = "--no-weight-decay-cond-type",
                     .must_match = false});
  if (args.head_lr_mult != 1.0)
    rules.push_back(
        {.patterns = head_patterns, .change = {.lr_mult = args.head_lr_mult}, .where = "--head-lr-mult"});
  for (const std::string& text : args.lr_mult) {
    const LrMult value = lr_mult_from(text).value();
    const std::vector<std::string> patterns =
        value.pattern.empty() ? args.scale_lr_cond : std::vector{value.pattern};
    for (const std::string& pattern : patterns)
      rules.push_back({.patterns = {pattern},
                       .change = {.lr_mult = value.factor},
                       .where = value.pattern.empty() ? "--scale-lr-cond" : "--lr-mult"});
  }
  return rules;
}

}  // namespace teratron
