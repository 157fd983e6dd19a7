#!/usr/bin/env bash
# Evaluates a GPT without finetuning, as Megatron-LM's script of this name: LAMBADA (JSON lines with "text") or
# WikiText-103 (TASK=WIKITEXT103, a file whose path contains "wiki").
#
#   CHECKPOINT=checkpoints/gpt2_345m VOCAB_FILE=gpt2-vocab.json MERGE_FILE=gpt2-merges.txt \
#     VALID_DATA=lambada_test.jsonl examples/evaluate_zeroshot_gpt.sh [FLAGS...]
#
# FLAGS override those below (--json figures.json, --overlapping-eval 256...). Every GPU is a replica of the model.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"

: "${CHECKPOINT:?folder of a run or checkpoint}"
: "${VOCAB_FILE:?gpt2-vocab.json}"
: "${MERGE_FILE:?gpt2-merges.txt}"
: "${VALID_DATA:?file of the task}"

LAUNCH=(
  "${teratron[@]}" launch
  --nproc-per-node "${GPUS_PER_NODE:-8}"
  --nnodes "${NNODES:-1}"
  --node-rank "${NODE_RANK:-0}"
  --master-addr "${MASTER_ADDR:-localhost}"
  --master-port "${MASTER_PORT:-6000}"
  --
)

"${LAUNCH[@]}" tasks \
  --task "${TASK:-LAMBADA}" \
  --valid-data "$VALID_DATA" \
  --tokenizer-type GPT2BPETokenizer \
  --strict-lambada \
  --vocab-file "$VOCAB_FILE" \
  --merge-file "$MERGE_FILE" \
  --load "$CHECKPOINT" \
  --tensor-model-parallel-size 1 \
  --num-layers 24 \
  --hidden-size 1024 \
  --num-attention-heads 16 \
  --batch-size 8 \
  --activations-checkpoint-method uniform \
  --seq-length 1024 \
  --max-position-embeddings 1024 \
  --log-interval 10 \
  --fp16 \
  --no-load-optim \
  --no-load-rng \
  "$@"
