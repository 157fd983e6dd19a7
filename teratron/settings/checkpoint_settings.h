// Settings that are saved with a checkpoint, against those of the run that reads it.
#pragma once

#include <string>
#include <vector>

#include "teratron/settings/arguments.h"

namespace teratron {

/// --use-checkpoint-args: the model's settings, the tokenizer's type and the sequence length of the checkpoint at
/// --load (--ckpt-step), where the user gave none. To be called before finish(). A notice names them; nothing
/// happens where there is no checkpoint. Not collective.
void use_checkpoint_args(ParsedArguments& parsed);

/// One line for each setting of which the model does not depend, but the numbers of the training do (seed, dropout,
/// data...), and which differs. Both are JSON objects.
std::vector<std::string> resume_notices(const std::string& saved, const std::string& current);

}  // namespace teratron
