#include "teratron/train/classification/classification.h"

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/settings/help_rows.h"
#include "teratron/train/classification/classification_step.h"

namespace teratron {

namespace {

// The flags that `teratron tasks` has, too.
std::vector<Field> labelled_fields() {
  return {reworded("task", "Kind of the labels", "classification|regression"),
          reworded("train_data", "Files of JSON lines to train on"),
          reworded("valid_data", "Files of JSON lines to evaluate on")};
}

}  // namespace

bool is_classifier(const Family& family) {
  return family.classifier && family.classifier().name == family.name;
}

ClassificationJob classification_job(const Family& base, std::string_view task) {
  if (!base.classifier) {
    std::vector<std::string_view> names;
    for (const Family& family : families()) {
      if (family.classifier) names.push_back(family.name);
    }
    throw config_error({.what = fmt::format("{} has no classification head", printable(base.name, 40)),
                        .where = "finetune",
                        .fix = fmt::format("Use {}", fmt::join(names, " or "))});
  }
  if (task != "classification" && task != "regression") {
    throw config_error({.what = fmt::format("{} is a task of `teratron tasks`", printable(task, 40)),
                        .where = "--task",
                        .fix = "Use --task classification or regression, or `teratron tasks`"});
  }
  const auto target = task == "classification" ? ClassifierTarget::one_of : ClassifierTarget::number;
  Registry registry{.train_step = [target](const Registry::Context&) {
    return std::make_unique<ClassificationStep>(target);
  }};
  Family family = base.classifier();
  if (is_classifier(base)) return {std::move(family), std::move(registry)};
  const std::vector<Field> rows = labelled_fields();
  family.fields.assign(rows.begin(), rows.end());
  return {std::move(family), std::move(registry)};
}

}  // namespace teratron
