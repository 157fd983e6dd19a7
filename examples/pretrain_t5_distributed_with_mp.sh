#!/usr/bin/env bash
# Pretrains T5-base with tensor and pipeline parallelism, encoder and decoder on separate stages.
#
#   CHECKPOINT_PATH=... VOCAB_FILE=bert-vocab.txt DATA_PATH=..._text_sentence \
#     examples/pretrain_t5_distributed_with_mp.sh [FLAGS...]
#
# DATA_PATH is what `teratron preprocess --split-sentences --tokenizer-type BertWordPieceLowerCase` made.
# On each of NNODES machines: NODE_RANK is its number, MASTER_ADDR the address of machine 0.
# FLAGS override those below (--train-iters 100, --bf16...).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"

: "${CHECKPOINT_PATH:?folder of the checkpoints}"
: "${VOCAB_FILE:?bert-vocab.txt}"
: "${DATA_PATH:?prefix of a dataset of sentences, such as my-t5_text_sentence}"

LAUNCH=(
  "${teratron[@]}" launch
  --nproc-per-node "${GPUS_PER_NODE:-8}"
  --nnodes "${NNODES:-1}"
  --node-rank "${NODE_RANK:-0}"
  --master-addr "${MASTER_ADDR:-localhost}"
  --master-port "${MASTER_PORT:-6000}"
  --
)

T5_ARGS=(
  --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 2
  --pipeline-model-parallel-split-rank 1
  --encoder-num-layers 12
  --decoder-num-layers 12
  --hidden-size 768
  --num-attention-heads 12
  --kv-channels 64
  --ffn-hidden-size 3072
  --encoder-seq-length 512
  --decoder-seq-length 128
  --max-position-embeddings 512
  --micro-batch-size 16
  --global-batch-size 128
  --lr 0.0001
  --train-iters 1000000
  --lr-decay-iters 1000000
  --lr-decay-style linear
  --min-lr 0.00001
  --weight-decay 1e-2
  --lr-warmup-fraction .01
  --clip-grad 1.0
  --fp16
  --vocab-extra-ids 100
)

DATA_ARGS=(
  --data-path "$DATA_PATH"
  --vocab-file "$VOCAB_FILE"
  --split 949,50,1
)

OUTPUT_ARGS=(
  --log-interval 100
  --save-interval 10000
  --eval-interval 1000
  --eval-iters 10
)

"${LAUNCH[@]}" pretrain t5 "${T5_ARGS[@]}" "${DATA_ARGS[@]}" "${OUTPUT_ARGS[@]}" \
  --save "$CHECKPOINT_PATH" --load "$CHECKPOINT_PATH" "$@"
