# Sourced by the scripts here. Sets the array `teratron` to the words of the program: $TERATRON (a path, or words such
# as "./run teratron"), else `teratron` on PATH, else what ./run build made here.
find_teratron() {
  local program build
  build=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build
  if [[ -n ${TERATRON:-} && -f $TERATRON ]]; then
    teratron=("$TERATRON")
    return
  fi
  if [[ -n ${TERATRON:-} ]]; then
    read -r -a teratron <<<"$TERATRON"
    return
  fi
  for program in "$(command -v teratron || true)" "$build"/{release,dev}/teratron/cli/teratron; do
    [[ -n $program && -x $program ]] || continue
    teratron=("$program")
    return
  done
  echo "$0: there is no program teratron. Build it first: ./run build" >&2
  exit 1
}
find_teratron
