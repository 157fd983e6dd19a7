#!/bin/bash
# The experiment of Accelerate's page on Megatron-LM: GPT2-large from random weights, 5 epochs of WikiText-2's raw text
# in blocks of 1,024 tokens, the perplexity after each epoch. On four GPUs the ranks are laid out as on the page.
# usage: examples/wikitext2.sh TRAIN_FILE VALIDATION_FILE TOKENIZER OUTPUT_DIR [FLAGS...]
#   the files are wiki.train.raw and wiki.valid.raw; TOKENIZER is a folder with tokenizer.json, or a name in
#   the Hugging Face cache. GPUS=1 or 2: on fewer GPUs, tensor-parallel, with the same batch of 48.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"
train=${1:?train file} valid=${2:?validation file} tokenizer=${3:?tokenizer} output=${4:?output folder}
shift 4
layout=(--config_file "$(dirname "$0")/megatron_gpt_config.yaml")
more=()
if [[ ${GPUS:-4} != 4 ]]; then
  layout=(--num_processes "$GPUS")
  more=(--bf16 --tensor_model_parallel_size "$GPUS" --gradient_accumulation_steps 2 --recompute-activations)
  [[ $GPUS == 1 ]] || more+=(--sequence-parallel)
fi
exec "${teratron[@]}" launch "${layout[@]}" -- run_clm_no_trainer.py \
  --config_name gpt2-large --tokenizer_name "$tokenizer" --train_file "$train" --validation_file "$valid" \
  --block_size 1024 --learning_rate 5e-5 --per_device_train_batch_size 24 --per_device_eval_batch_size 24 \
  --num_train_epochs 5 --output_dir "$output" "${more[@]}" "$@"
