// `teratron pretrain gpt`: from settings to a trained, evaluated and saved model.
#pragma once

#include "teratron/base/error.h"
#include "teratron/comm/communicator.h"
#include "teratron/train/arguments.h"
#include "teratron/train/signals.h"

namespace teratron {

/// Runs one rank's part of a whole training. `parsed` is finished (finish()) for the world's size. Returns
/// ExitCode::ok when training reached its planned end, stopped when a signal ended it after saving; everything
/// else is thrown.
ExitCode pretrain(const ParsedArguments& parsed, World& world, const StopSignals& signals);

}  // namespace teratron
