#!/usr/bin/env bash
# Finetunes a BERT on MNLI, as Megatron-LM's script of this name: it says whether one text follows from another.
#
#   DATA=data/glue_data/MNLI PRETRAINED_CHECKPOINT=checkpoints/bert_345m VOCAB_FILE=bert-vocab.txt \
#     CHECKPOINT_PATH=checkpoints/bert_345m_mnli examples/finetune_mnli_distributed.sh [FLAGS...]
#
# FLAGS override those below (--epochs 1, --json figures.json, --bf16...). Each epoch is saved, and
# best_checkpointed_iteration.txt names the most accurate one.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"

: "${DATA:?folder of MNLI, with train.tsv, dev_matched.tsv and dev_mismatched.tsv}"
: "${PRETRAINED_CHECKPOINT:?folder of a pretrained BERT}"
: "${VOCAB_FILE:?bert-vocab.txt}"
: "${CHECKPOINT_PATH:?folder of the checkpoints}"

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
  --task MNLI \
  --seed 1234 \
  --train-data "$DATA/train.tsv" \
  --valid-data "$DATA/dev_matched.tsv" "$DATA/dev_mismatched.tsv" \
  --tokenizer-type BertWordPieceLowerCase \
  --vocab-file "$VOCAB_FILE" \
  --epochs 5 \
  --pretrained-checkpoint "$PRETRAINED_CHECKPOINT" \
  --tensor-model-parallel-size 1 \
  --num-layers 24 \
  --hidden-size 1024 \
  --num-attention-heads 16 \
  --seq-length 512 \
  --max-position-embeddings 512 \
  --micro-batch-size 8 \
  --activations-checkpoint-method uniform \
  --lr 5.0e-5 \
  --lr-decay-style linear \
  --lr-warmup-fraction 0.065 \
  --save-interval 500000 \
  --save "$CHECKPOINT_PATH" \
  --log-interval 10 \
  --eval-interval 100 \
  --eval-iters 50 \
  --weight-decay 1.0e-1 \
  --fp16 \
  "$@"
