#include "teratron/optim/param_groups.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/base/hash.h"
#include "teratron/comm/consensus.h"

namespace teratron {

namespace {

ParamGroup changed(ParamGroup group, const ParamGroupChange& change) {
  group.lr_mult = change.lr_mult.value_or(group.lr_mult);
  group.weight_decay_mult = change.weight_decay_mult.value_or(group.weight_decay_mult);
  return group;
}

bool is_factor(const std::optional<double>& value) {
  return !value || (std::isfinite(*value) && *value >= 0.0);
}

}  // namespace

ParamGroups::ParamGroups(ParameterSet& parameters, const Mesh& mesh, ParamGroupFunction program,
                         std::vector<ParamGroupRule> rules)
    : mesh_(mesh) {
  for (Parameter& parameter : parameters.all()) {
    if (parameter.options.trainable) trained_.push_back({&parameter, parameter.options.param_group});
  }
  if (program) ask_program(program);
  set_rules(std::move(rules));
}

// Stages that share a parameter give the same text.
void ParamGroups::ask_program(const ParamGroupFunction& program) {
  std::set<std::string> changes;
  std::string wrong;
  for (Trained& trained : trained_) {
    const Parameter& parameter = *trained.parameter;
    const ParamGroupChange change = program(parameter.name, parameter.shard().global_shape);
    if (!is_factor(change.lr_mult) || !is_factor(change.weight_decay_mult)) wrong = parameter.name;
    const ParamGroup group = changed(trained.before, change);
    if (group != trained.before)
      changes.insert(fmt::format("{} {} {}", parameter.name, group.lr_mult, group.weight_decay_mult));
    trained.before = group;
  }
  HostGroup& world = *mesh_.world().communicator;
  if (wrong = first_nonempty(world, wrong); !wrong.empty())
    throw config_error({.what = fmt::format("a factor for {} is negative or not a number", wrong),
                        .where = "the program's parameter groups",
                        .fix = "Return factors of at least 0"});
  changes = union_of(world, changes);
  if (changes.empty()) return;
  choices_.program = hash_to_hex(hash_text(fmt::format("{}", fmt::join(changes, "\n"))));
}

void ParamGroups::set_rules(std::vector<ParamGroupRule> rules) {
  choices_.rules = std::move(rules);
  check_matches();
  for (const Trained& trained : trained_) {
    ParamGroup group = trained.before;
    for (const ParamGroupRule& rule : choices_.rules) {
      if (matches(rule, trained.parameter->name)) group = changed(group, rule.change);
    }
    trained.parameter->options.param_group = group;
  }
  if (!choices_.empty()) check_count();
}

void ParamGroups::check_count() const {
  std::vector<ParamGroup> different;
  for (const Trained& trained : trained_) {
    const ParamGroup& group = trained.parameter->options.param_group;
    if (std::ranges::find(different, group) == different.end()) different.push_back(group);
  }
  const std::string mine = different.size() > 256 ? std::to_string(different.size()) : "";
  const std::string found = first_nonempty(*mesh_.world().communicator, mine);
  if (found.empty()) return;
  throw config_error({.what = fmt::format("{} parameter groups of one rank differ, of at most 256", found),
                      .where = "the parameter groups",
                      .fix = "Use fewer different factors of the learning rate and the weight decay"});
}

// A parameter may be on other pipeline stages.
void ParamGroups::check_matches() const {
  if (choices_.rules.empty()) return;
  std::set<std::string> matched;
  for (size_t i = 0; i < choices_.rules.size(); ++i) {
    if (std::ranges::any_of(trained_, [&](const Trained& trained) {
          return matches(choices_.rules[i], trained.parameter->name);
        }))
      matched.insert(std::to_string(i));
  }
  matched = union_of(*mesh_.world().communicator, matched);
  std::vector<Problem> problems;
  for (size_t i = 0; i < choices_.rules.size(); ++i) {
    const ParamGroupRule& rule = choices_.rules[i];
    if (!rule.must_match || matched.contains(std::to_string(i))) continue;
    problems.push_back({.what = fmt::format("no trained parameter is named {}",
                                            printable(fmt::format("{}", fmt::join(rule.patterns, " or ")))),
                        .where = rule.where,
                        .fix = "Use names as `teratron ckpt inspect` lists them, with * for any text: "
                               "*.mlp.linear_fc1.weight"});
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

}  // namespace teratron
