#!/bin/bash
# Text of a trained model: continues prompts, writes 100 texts without a prompt, or answers JSON lines.
# usage: examples/generate_text.sh RUN prompts "Once upon" ... | samples OUT.jsonl | lines IN.jsonl OUT.jsonl
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"
run=${1:?folder of a run or checkpoint} mode=${2:?prompts, samples or lines}
shift 2
generate=("${teratron[@]}" generate --load "$run" --max-new-tokens "${NEW_TOKENS:-64}" --top-p 0.9)
case $mode in
  prompts) exec "${generate[@]}" --prompt "$@" ;;
  samples) exec "${generate[@]}" --num-samples 100 --genfile "${1:?output file}" ;;
  lines) exec "${generate[@]}" --input "${1:?requests}" --output "${2:?answers}" ;;
  *) echo "usage: $0 RUN prompts TEXT... | samples OUT.jsonl | lines IN.jsonl OUT.jsonl" >&2; exit 2 ;;
esac
