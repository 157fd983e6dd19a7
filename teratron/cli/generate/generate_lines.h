// `teratron generate --input IN.jsonl --output OUT.jsonl`: a request per line, its answer in the same line of
// OUT (generate/json/request_json.h). A line that cannot be answered becomes {"error": ...}.
//
// Answers are written as they come, in order, to OUT.<hash>.partial, where the hash is that of the input, the
// checkpoint and the flags. Each line ends with a hash of its number and answer: the same command after an
// interruption goes on after the last sound line. OUT.lock is held meanwhile.
#pragma once

#include "teratron/cli/generate/generate_job.h"

namespace teratron {

/// ExitCode::data if a line had an error. Collective.
ExitCode generate_lines(const GenerateJob& job);

}  // namespace teratron
