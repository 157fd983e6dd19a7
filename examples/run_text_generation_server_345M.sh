#!/bin/bash
# Serves a GPT of 345M parameters, as Megatron-LM's script of this name: PUT /api on port 5000, and a page.
# The layout is that of the ranks that serve, whatever trained the checkpoint.
# usage: examples/run_text_generation_server_345M.sh CHECKPOINT [VOCAB_FILE MERGE_FILE] [FLAGS...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"
checkpoint=${1:?folder of a run or checkpoint}
shift
tokenizer=()
if [[ $# -ge 2 && $1 != -* ]]; then
  tokenizer=(--tokenizer-type GPT2BPETokenizer --vocab-file "$1" --merge-file "$2")
  shift 2
fi
exec "${teratron[@]}" launch --nproc-per-node "${GPUS:-1}" -- serve --load "$checkpoint" "${tokenizer[@]}" \
  --host "${HOST:-127.0.0.1}" --port "${PORT:-5000}" "$@"
