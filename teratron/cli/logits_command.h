// teratron logits --load DIR --input ids.txt --output out.safetensors
#pragma once

#include <span>
#include <string>

namespace teratron {

/// Runs the model over the token ids of each line of --input (separated by blanks or commas) and writes its logits
/// in fp32, one tensor "logits.<line>" [tokens, vocabulary] per line counted from 0. The model computes in
/// fp32 whatever the checkpoint's type. `args` come after the word "logits".
int logits_command(std::span<const std::string> args);

}  // namespace teratron
