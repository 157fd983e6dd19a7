// teratron generate --load DIR --prompt TEXT...
#pragma once

#include <span>
#include <string>

namespace teratron {

/// Continues the texts of --prompt, of the lines of --sample-input-file, or of stdin's lines. Model and tokenizer
/// come from the checkpoint unless flags say otherwise. With --run-dir the texts join that run's metrics.jsonl
/// and report.html. `args` come after the word "generate".
int generate_command(std::span<const std::string> args);

}  // namespace teratron
