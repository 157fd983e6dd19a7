#include "teratron/train/classification/classification.h"

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/train/classification/classification_step.h"

namespace teratron {

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
  return {base.classifier(), std::move(registry)};
}

}  // namespace teratron
