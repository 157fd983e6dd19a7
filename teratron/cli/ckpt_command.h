// teratron ckpt {inspect,verify,convert}
#pragma once

#include <span>
#include <string>

namespace teratron {

/// `args` come after the word "ckpt". Results go to stdout; returns the exit code. Throws UserError and Fault.
///
///   inspect DIR [--ckpt-step N] [--tensors]   what a checkpoint holds; DIR is a --save folder or one iter_* in it
///   verify  DIR [--ckpt-step N]               reads every byte against its hash
///   convert --from-hf DIR --save DIR          Hugging Face -> checkpoint of iteration 0
///   convert --to-hf DIR --load DIR [--ckpt-step N] [--max-shard-size 5GB] [--tokenizer-name DIR]
///           both: [--target-params-dtype fp32|bf16|fp16] [--print-checkpoint-structure]
///
/// convert also takes the spellings of Accelerate's tool: --load_path, --save_path and
/// --convert_checkpoint_from_megatron_to_transformers, and its --target_*_parallel_size, which change nothing
/// here: a checkpoint has no layout.
int ckpt_command(std::span<const std::string> args);

}  // namespace teratron
