#!/usr/bin/env bash
# Pretrains a hybrid of Mamba-2, attention and MLPs with the settings of Megatron-LM's script for Mamba.
#
#   CHECKPOINT_PATH=... TOKENIZER_MODEL=tokenizer.model DATA_PATH=..._text_document \
#     [MODEL_SCALE=800M|8B] examples/pretrain_mamba.sh [FLAGS...]
#
# DATA_PATH is what `teratron preprocess` made. FLAGS override those below (--train-samples 1000,
# --hybrid-layer-pattern MMMM...). The model of 8B needs four ranks: `teratron launch --nproc-per-node 4 -- ...`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"

: "${CHECKPOINT_PATH:?folder of the checkpoints}"
: "${TOKENIZER_MODEL:?tokenizer.model of SentencePiece}"
: "${DATA_PATH:?prefix of a dataset, such as my-mamba_text_document}"

case "${MODEL_SCALE:-800M}" in
  800M) SCALE_ARGS=(--num-layers 48 --hidden-size 1024 --num-attention-heads 16 --global-batch-size 32) ;;
  8B) SCALE_ARGS=(--num-layers 56 --hidden-size 4096 --num-attention-heads 32 --global-batch-size 8
                  --tensor-model-parallel-size 4 --sequence-parallel) ;;
  *) echo "MODEL_SCALE is 800M or 8B" >&2; exit 2 ;;
esac

MAMBA_ARGS=(
  --group-query-attention
  --num-query-groups 8
  --hybrid-attention-ratio 0.08
  --hybrid-mlp-ratio 0.5
  --position-embedding-type none
  --normalization RMSNorm
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --init-method-std 0.02
  --seq-length 4096
  --max-position-embeddings 4096
  --micro-batch-size 4
  --train-samples 73242188
  --lr-warmup-samples 50000
  --lr-decay-samples 73192188
  --lr 2.5e-4
  --min-lr 2.5e-5
  --lr-decay-style cosine
  --weight-decay 0.1
  --clip-grad 1.0
  --adam-beta1 0.9
  --adam-beta2 0.95
  --bf16
  --use-distributed-optimizer
)

DATA_ARGS=(
  --data-path "$DATA_PATH"
  --tokenizer-type GPTSentencePieceTokenizer
  --tokenizer-model "$TOKENIZER_MODEL"
  --split 99,1,0
)

OUTPUT_ARGS=(
  --log-interval 10
  --save-interval 2000
  --eval-interval 2000
  --eval-iters 32
)

"${teratron[@]}" pretrain mamba "${SCALE_ARGS[@]}" "${MAMBA_ARGS[@]}" "${DATA_ARGS[@]}" "${OUTPUT_ARGS[@]}" \
  --save "$CHECKPOINT_PATH" --load "$CHECKPOINT_PATH" "$@"
