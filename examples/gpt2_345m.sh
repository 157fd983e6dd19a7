#!/bin/bash
# GPT-2 345M on two GPUs: tensor parallel (tp2), pipeline parallel (pp2) or data parallel (dp2).
# usage: examples/gpt2_345m.sh tp2|pp2|dp2 DATA_PREFIX VOCABULARY_FOLDER [FLAGS...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"
case ${1:-} in
  tp2) layout=(--tensor-model-parallel-size 2 --sequence-parallel) ;;
  pp2) layout=(--pipeline-model-parallel-size 2) ;;
  dp2) layout=(--use-distributed-optimizer) ;;
  *) echo "usage: $0 tp2|pp2|dp2 DATA_PREFIX VOCABULARY_FOLDER [FLAGS...]" >&2; exit 2 ;;
esac
data=${2:?data prefix} vocabulary=${3:?folder with vocab.json and merges.txt} name=$1
shift 3
exec "${teratron[@]}" launch --nproc-per-node 2 -- pretrain gpt "${layout[@]}" \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
  --micro-batch-size 4 --global-batch-size 16 --bf16 --lr 1.5e-4 --min-lr 1e-5 --lr-decay-style cosine \
  --train-iters 500 --lr-warmup-fraction 0.01 --weight-decay 0.01 --clip-grad 1.0 \
  --data-path "$data" --split 949,50,1 --tokenizer-type GPT2BPETokenizer \
  --vocab-file "$vocabulary/vocab.json" --merge-file "$vocabulary/merges.txt" \
  --log-interval 10 --log-throughput --eval-interval 100 --eval-iters 10 --run-dir "runs/gpt2-345m-$name" "$@"
