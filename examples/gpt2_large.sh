#!/bin/bash
# GPT2-large on four GPUs, laid out by megatron_gpt_config.yaml: 245 steps of 48 x 1024 tokens, evaluated every 49.
# usage: examples/gpt2_large.sh DATA_PREFIX VOCABULARY_FOLDER [FLAGS...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"
data=${1:?data prefix} vocabulary=${2:?folder with vocab.json and merges.txt}
shift 2
exec "${teratron[@]}" launch --config-file "$(dirname "$0")/megatron_gpt_config.yaml" -- pretrain gpt \
  --model-preset gpt2-large --seq-length 1024 --micro-batch-size 24 --lr 5e-5 --lr-decay-style linear \
  --weight-decay 0.0 --train-iters 245 --eval-interval 49 --eval-iters 4 --log-interval 7 \
  --data-path "$data" --split 949,50,1 --tokenizer-type GPT2BPETokenizer \
  --vocab-file "$vocabulary/vocab.json" --merge-file "$vocabulary/merges.txt" --run-dir runs/gpt2-large "$@"
