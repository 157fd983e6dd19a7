// What `teratron plan` assumes where a training would need data and the files of a tokenizer.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "teratron/settings/arguments.h"
#include "teratron/train/registry.h"

namespace teratron {

/// The flags of `given` with --mock-data if they name no data, and with the size of the vocabulary if the
/// tokenizer's files are not here. It is that of the preset or config.json, else of the published tokenizer
/// of this type; where neither is known, validation reports the files.
std::vector<std::string> with_assumptions(std::span<const std::string> flags, const ParsedArguments& given,
                                          const JobModel& model);

}  // namespace teratron
