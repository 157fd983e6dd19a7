#!/bin/bash
# Generation on four ranks, laid out by megatron_lm_gpt_generate_config.yaml (Accelerate's): two tensor-parallel
# ranks in each of two pipeline stages. The checkpoint may come from any layout.
# usage: examples/megatron_lm_gpt_generate.sh RUN IN.jsonl OUT.jsonl [FLAGS...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"
run=${1:?folder of a run or checkpoint} input=${2:?requests} output=${3:?answers}
shift 3
exec "${teratron[@]}" launch --config-file "$(dirname "$0")/megatron_lm_gpt_generate_config.yaml" -- generate \
  --load "$run" --input "$input" --output "$output" "$@"
