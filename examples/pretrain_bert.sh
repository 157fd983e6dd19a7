#!/usr/bin/env bash
# Pretrains BERT-large with the settings of Megatron-LM's script of this name.
#
#   CHECKPOINT_PATH=... VOCAB_FILE=bert-vocab.txt DATA_PATH=..._text_sentence \
#     examples/pretrain_bert.sh [FLAGS...]
#
# DATA_PATH is what `teratron preprocess --split-sentences --tokenizer-type BertWordPieceLowerCase` made.
# FLAGS override those below (--train-iters 100, --bf16...).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"

: "${CHECKPOINT_PATH:?folder of the checkpoints}"
: "${VOCAB_FILE:?bert-vocab.txt}"
: "${DATA_PATH:?prefix of a dataset of sentences, such as my-bert_text_sentence}"

BERT_ARGS=(
  --num-layers 24
  --hidden-size 1024
  --num-attention-heads 16
  --seq-length 512
  --max-position-embeddings 512
  --micro-batch-size 4
  --global-batch-size 8
  --lr 0.0001
  --train-iters 2000000
  --lr-decay-iters 990000
  --lr-decay-style linear
  --min-lr 1.0e-5
  --weight-decay 1e-2
  --lr-warmup-fraction .01
  --clip-grad 1.0
  --fp16
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

"${teratron[@]}" pretrain bert "${BERT_ARGS[@]}" "${DATA_ARGS[@]}" "${OUTPUT_ARGS[@]}" \
  --save "$CHECKPOINT_PATH" --load "$CHECKPOINT_PATH" "$@"
