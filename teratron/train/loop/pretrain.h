// From the settings of a training to a trained, evaluated and saved model.
#pragma once

#include "teratron/base/error.h"
#include "teratron/comm/communicator.h"
#include "teratron/settings/arguments.h"
#include "teratron/train/guards/signals.h"
#include "teratron/train/loop/train_loop.h"

namespace teratron {

/// Runs one rank of a whole training. `parsed` is finished for the world's size (finish_arguments()). Returns
/// ExitCode::ok if training reached its planned end, stopped if a signal or autoresume stopped it after a
/// save; everything else is thrown. `make_sampler`: of TrainLoop::sample_texts().
ExitCode pretrain(const ParsedArguments& parsed, World& world, const StopSignals& signals,
                  const JobModel& model, const TextSamplerFactory& make_sampler = nullptr);

}  // namespace teratron
