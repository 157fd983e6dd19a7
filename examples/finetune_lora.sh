#!/bin/bash
# Adapters (LoRA) for a Hugging Face model on conversations, then the merged model as a Hugging Face folder.
# usage: examples/finetune_lora.sh MODEL_FOLDER CHATS.jsonl OUT_FOLDER [FLAGS...]
#   EVAL=questions.jsonl  evaluates the model before and after (teratron eval)
#   SERVE=8080            then serves the merged model, with a page to chat, at this port
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"
model=${1:?Hugging Face folder} chats=${2:?JSON lines of conversations} out=${3:?output folder}
shift 3
evaluate() {
  [ -z "${EVAL:-}" ] || "${teratron[@]}" eval --hf "$1" --data "$EVAL" --json "$out/$2.json" --predictions "$out/$2.jsonl"
}
mkdir -p "$out"
evaluate "$model" before
"${teratron[@]}" finetune gpt --hf "$model" --data-path "$chats" --split "${SPLIT:-95,5,0}" --seq-length "${SEQ_LENGTH:-2048}" \
  --micro-batch-size 1 --global-batch-size 8 --num-train-epochs 2 --lr 2e-4 --lr-decay-style cosine \
  --lora-rank 16 --lora-alpha 32 --log-interval 1 --eval-iters 1 --save "$out/run" --lora-out "$out/adapter" "$@"
"${teratron[@]}" ckpt merge-lora --from-hf "$model" --lora "$out/adapter" --to-hf "$out/merged"
evaluate "$out/merged" after
if [ -n "${SERVE:-}" ]; then
  exec "${teratron[@]}" serve --hf "$out/merged" --port "$SERVE"
fi
echo "talk to it: ${teratron[*]} serve --hf $out/merged"
