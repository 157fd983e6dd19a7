#!/bin/bash
# A job on two machines without a scheduler. On each: examples/two_machines.sh ADDRESS_OF_MACHINE_0 0|1 COMMAND...
# where COMMAND are the arguments of `teratron`: pretrain gpt FLAGS...
# To try it on one machine, use 127.0.0.1 and FLAGS_OF_LAUNCH=--use-cpu.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"
address=${1:?address of machine 0} machine=${2:?0 or 1}
shift 2
read -r -a flags <<<"${FLAGS_OF_LAUNCH:-}"
exec "${teratron[@]}" launch --nnodes 2 --node-rank "$machine" --master-addr "$address" --max-restarts 3 \
  --log-dir "logs/machine-$machine" "${flags[@]}" -- "$@"
