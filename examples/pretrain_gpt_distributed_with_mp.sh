#!/usr/bin/env bash
# Pretrains GPT-345M with tensor, sequence and pipeline parallelism, as Megatron-LM's script of this name.
#
#   CHECKPOINT_PATH=... VOCAB_FILE=... MERGE_FILE=... DATA_PATH=..._text_document \
#     examples/pretrain_gpt_distributed_with_mp.sh [FLAGS...]
#
# On each of NNODES machines: NODE_RANK is its number, MASTER_ADDR the address of machine 0.
# FLAGS override those below (--train-iters 100, --bf16...).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"

: "${CHECKPOINT_PATH:?folder of the checkpoints}"
: "${VOCAB_FILE:?gpt2-vocab.json}"
: "${MERGE_FILE:?gpt2-merges.txt}"
: "${DATA_PATH:?prefix of a dataset, such as my-gpt2_text_document}"

LAUNCH=(
  "${teratron[@]}" launch
  --nproc-per-node "${GPUS_PER_NODE:-8}"
  --nnodes "${NNODES:-1}"
  --node-rank "${NODE_RANK:-0}"
  --master-addr "${MASTER_ADDR:-localhost}"
  --master-port "${MASTER_PORT:-6000}"
  --
)

GPT_ARGS=(
  --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 2
  --sequence-parallel
  --num-layers 24
  --hidden-size 1024
  --num-attention-heads 16
  --seq-length 1024
  --max-position-embeddings 1024
  --micro-batch-size 4
  --global-batch-size 16
  --lr 0.00015
  --train-iters 500000
  --lr-decay-iters 320000
  --lr-decay-style cosine
  --min-lr 1.0e-5
  --weight-decay 1e-2
  --lr-warmup-fraction .01
  --clip-grad 1.0
  --fp16
)

DATA_ARGS=(
  --data-path "$DATA_PATH"
  --vocab-file "$VOCAB_FILE"
  --merge-file "$MERGE_FILE"
  --split 949,50,1
)

OUTPUT_ARGS=(
  --log-interval 100
  --save-interval 10000
  --eval-interval 1000
  --eval-iters 10
)

"${LAUNCH[@]}" pretrain gpt "${GPT_ARGS[@]}" "${DATA_ARGS[@]}" "${OUTPUT_ARGS[@]}" \
  --save "$CHECKPOINT_PATH" --load "$CHECKPOINT_PATH" "$@"
