// `teratron pretrain FAMILY`: from settings to a trained, evaluated and saved model.
#pragma once

#include "teratron/base/error.h"
#include "teratron/comm/communicator.h"
#include "teratron/settings/arguments.h"
#include "teratron/train/guards/signals.h"
#include "teratron/train/train_loop.h"

namespace teratron {

/// The settings of flags, file, environment and, with --use-checkpoint-args, checkpoint; not validated, with
/// problems deferred (ParsedArguments::problems).
ParsedArguments given_arguments(std::span<const std::string> args, const JobModel& model);
/// The finished settings of a pretraining on `world_size` ranks, from flags, file, environment and, with
/// --use-checkpoint-args, checkpoint. UserError(config) lists every problem. With --help only `help` is set.
ParsedArguments pretrain_arguments(std::span<const std::string> args, int64_t world_size,
                                   const JobModel& model);
/// Text of --help: the flags of the family and of the program.
std::string pretrain_help(const JobModel& model);

/// Runs one rank of a whole training. `parsed` is finished for the world's size. Returns ExitCode::ok if
/// training reached its planned end, stopped if a signal or autoresume stopped it after a save; everything
/// else is thrown. `make_sampler`: of TrainLoop::sample_texts().
ExitCode pretrain(const ParsedArguments& parsed, World& world, const StopSignals& signals,
                  const JobModel& model, const TextSamplerFactory& make_sampler = nullptr);

}  // namespace teratron
