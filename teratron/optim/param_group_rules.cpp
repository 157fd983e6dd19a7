#include "teratron/optim/param_group_rules.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {

namespace {

using nlohmann::json;

// Goes back to the last * where the texts part.
bool matches(std::string_view pattern, std::string_view name) {
  size_t at = 0, i = 0, star = pattern.npos, star_at = 0;
  while (at < name.size()) {
    if (i < pattern.size() && pattern[i] == '*') {
      star = i++;
      star_at = at;
    } else if (i < pattern.size() && (pattern[i] == '?' || pattern[i] == name[at])) {
      ++i, ++at;
    } else if (star != pattern.npos) {
      i = star + 1;
      at = ++star_at;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', i) == pattern.npos;
}

json rule_state(const ParamGroupRule& rule) {
  json state = {{"patterns", rule.patterns}};
  if (rule.change.lr_mult) state["lr_mult"] = *rule.change.lr_mult;
  if (rule.change.weight_decay_mult) state["wd_mult"] = *rule.change.weight_decay_mult;
  return state;
}

UserError malformed() {
  return checkpoint_error({.what = "the checkpoint's parameter groups are not a list of patterns and factors",
                           .where = "manifest.json",
                           .fix = "Use --override-opt-param-scheduler to use the flags"});
}

ParamGroupRule rule_from(const json& state) {
  const auto factor = [&](const char* key) -> std::optional<double> {
    const auto found = state.find(key);
    if (found == state.end()) return std::nullopt;
    if (!found->is_number()) throw malformed();
    return found->get<double>();
  };
  const bool valid =
      state.is_object() && state.contains("patterns") && state["patterns"].is_array() &&
      std::ranges::all_of(state["patterns"], [](const json& text) { return text.is_string(); });
  if (!valid) throw malformed();
  return {.patterns = state["patterns"],
          .change = {factor("wd_mult"), factor("lr_mult")},
          .where = "the checkpoint"};
}

ParamGroupChoices choices_from(const json& state) {
  ParamGroupChoices choices;
  if (!state.is_object()) return choices;
  for (const json& rule : state.value("rules", json::array())) choices.rules.push_back(rule_from(rule));
  if (state.contains("program") && !state["program"].is_string()) throw malformed();
  choices.program = state.value("program", "");
  return choices;
}

std::string text_of(const std::vector<ParamGroupRule>& rules) {
  std::vector<std::string> texts;
  for (const ParamGroupRule& rule : rules) {
    std::string text = printable(fmt::format("{}", fmt::join(rule.patterns, " or ")));
    if (rule.change.lr_mult) text += fmt::format(": learning rate x {}", *rule.change.lr_mult);
    if (rule.change.weight_decay_mult)
      text += fmt::format(": weight decay x {}", *rule.change.weight_decay_mult);
    texts.push_back(std::move(text));
  }
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

bool matches(const ParamGroupRule& rule, std::string_view name) {
  return std::ranges::any_of(rule.patterns,
                             [&](const std::string& pattern) { return matches(pattern, name); });
}

json ParamGroupChoices::state() const {
  json list = json::array();
  for (const ParamGroupRule& rule : rules) list.push_back(rule_state(rule));
  return {{"rules", std::move(list)}, {"program", program}};
}

void ParamGroupChoices::load(const json& state, ScheduleLoadRule rule) {
  if (rule == ScheduleLoadRule::keep_flags) return;
  ParamGroupChoices saved = choices_from(state);
  std::vector<Problem> problems;
  if (saved.program != program)
    problems.push_back(
        {.what = "the program chooses other parameter groups than the one that wrote the checkpoint",
         .where = "manifest.json",
         .fix = "Pass --override-opt-param-scheduler to use the program's"});
  const bool same = std::ranges::equal(rules, saved.rules, [](const auto& a, const auto& b) {
    return a.patterns == b.patterns && a.change == b.change;
  });
  if (!same && rule == ScheduleLoadRule::must_match)
    problems.push_back({.what = fmt::format("parameter groups are {} in the checkpoint but {} by the flags",
                                            text_of(saved.rules), text_of(rules)),
                        .where = "manifest.json",
                        .fix = "Pass --override-opt-param-scheduler to use the flags, or "
                               "--use-checkpoint-opt-param-scheduler to "
                               "use the checkpoint"});
  if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
  if (!same) rules = std::move(saved.rules);
}

}  // namespace teratron
