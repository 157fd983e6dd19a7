// `teratron pretrain FAMILY`: from settings to a trained, evaluated and saved model.
#pragma once

#include "teratron/base/error.h"
#include "teratron/comm/communicator.h"
#include "teratron/settings/arguments.h"
#include "teratron/settings/checkpoint_args.h"
#include "teratron/train/guards/signals.h"
#include "teratron/train/train_loop.h"

namespace teratron {

/// The settings of flags, file and environment; not validated, with problems deferred
/// (ParsedArguments::problems). With --help only `help` is set.
ParsedArguments flag_arguments(std::span<const std::string> args, const JobModel& model);
/// The same and, with --use-checkpoint-args, those of the checkpoint, which is read here.
ParsedArguments given_arguments(std::span<const std::string> args, const JobModel& model);
/// Finishes the settings of flag_arguments() for `world_size` ranks, with those of the checkpoint.
/// UserError(config) lists every problem.
void finish_arguments(ParsedArguments& parsed, const std::optional<SavedSettings>& saved, int64_t world_size,
                      const JobModel& model);
/// All of that by one process. With --help only `help` is set.
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
