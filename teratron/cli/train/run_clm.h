// Flags of Hugging Face's run_clm, which Accelerate's megatron_lm_gpt_pretraining.py has too.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "teratron/train/registry.h"

namespace teratron {

/// The arguments of `pretrain gpt` with run_clm's flags replaced by ours; unchanged without any, or for other
/// families. They are known by run_clm's own spelling, --learning_rate.
///
/// A model or tokenizer is a folder, a preset, or a name in Hugging Face's cache. Texts are tokenized and cut
/// into blocks once (data/text/preprocess.h) and kept in the folder "blocks" of --output_dir. Without a text
/// for the validation, the first --validation_split_percentage of the rows are taken. Prints one notice, on
/// rank 0. UserError(config), and UserError(data) for a name or a text that is not found.
std::vector<std::string> run_clm_as_ours(std::span<const std::string> args, const JobModel& model);

}  // namespace teratron
