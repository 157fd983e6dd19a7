#include "python/module/settings.h"

#include <utility>

#include "teratron/cli/training_arguments.h"

namespace teratron::python {

namespace {

const Registry& no_registry() {
  static const Registry none;
  return none;
}

// What a training needs beside its data.
void require_training(const Arguments& args) {
  std::vector<Problem> problems;
  const auto require = [&](bool is_set, const char* name, const char* meaning) {
    if (is_set) return;
    problems.push_back({.what = fmt::format("{} is not set", name),
                        .where = flag_of(name),
                        .fix = fmt::format("Give {}: {}", name, meaning)});
  };
  require(args.micro_batch_size.has_value(), "micro_batch_size", "the samples per forward pass of a rank");
  require(args.lr.has_value(), "lr", "the maximum learning rate");
  require(args.train_iters || args.train_samples, "train_iters", "the number of steps");
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

}  // namespace

Settings::Settings(const std::string& family, std::vector<std::string> flags, int64_t world_size, Data data)
    : family_(find_family(family)),
      flags_(std::move(flags)),
      world_size_(world_size),
      parsed_(pretrain_arguments(flags_, world_size, {family_, no_registry()},
                                 {.needs_data = data == Data::settings})) {
  if (data == Data::program) require_training(parsed_.args);
}

std::string Settings::json() const {
  return to_json(parsed_.args);
}

}  // namespace teratron::python
