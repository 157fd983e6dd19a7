# What ./run speedrun does; read by ./run. From text to a model that chats, each step skipped when its result is there.

make_speedrun() {
  local runs=runs/speedrun serve=no
  run_command=speedrun
  while [[ $# -gt 0 ]]; do
    case $1 in
      --fresh) rm -rf "$runs" ;;
      --serve) serve=yes ;;
      *) die "unknown option of speedrun: $1" "See ./run help." ;;
    esac
    shift
  done
  need_packages "${DEMO_PACKAGES[@]}"
  build teratron
  mkdir -p "$runs"
  local data=$runs/data tokenizer=$runs/tokenizer base=$runs/base chat=$runs/chat
  local vocabulary=(--tokenizer-type HuggingFaceTokenizer --tokenizer-model "$tokenizer")
  local model=(--num-layers 4 --hidden-size 192 --num-attention-heads 6) training=(--micro-batch-size 8 --global-batch-size 8 --train-iters 600)
  local tuning=(--num-train-epochs 1 --micro-batch-size 4)
  if [[ $cpu_only == no ]] && has_gpu; then
    model=(--num-layers 8 --hidden-size 512 --num-attention-heads 8)
    training=(--micro-batch-size 64 --global-batch-size 64 --train-iters 2000 --bf16)
    tuning=(--num-train-epochs 2 --micro-batch-size 16)
  fi

  if [[ ! -s $data/questions.jsonl ]]; then
    mkdir -p "$data"
    "$ROOT/tools/fortunes_to_jsonl" >"$data/all.jsonl" ||
      die "the quotations of the package fortunes cannot be read." "Install it, so that /usr/share/games/fortunes exists."
    "$ROOT/tools/speedrun_data" "$data/all.jsonl" "$data"
  fi
  if [[ ! -f $tokenizer/tokenizer_config.json ]]; then
    teratron tokenizer train --input "$data/train.jsonl" --vocab-size 4096 --output "$tokenizer" \
      --special-tokens '<|endoftext|>' '<|im_start|>' '<|im_end|>'
    "$ROOT/tools/speedrun_data" --template "$tokenizer"
  fi
  [[ -f $data/train_text_document.idx ]] ||
    teratron preprocess --input "$data/train.jsonl" --output-prefix "$data/train" "${vocabulary[@]}" --append-eod --workers 2

  if [[ ! -d $base ]]; then
    teratron pretrain gpt "${model[@]}" --seq-length 128 --max-position-embeddings 128 \
      --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
      --attention-dropout 0 --hidden-dropout 0 --weight-decay 0.1 --clip-grad 1.0 \
      "${training[@]}" --lr 3e-3 --min-lr 3e-4 --lr-decay-style cosine --lr-warmup-iters 50 \
      --data-path "$data/train_text_document" --split 990,10,0 "${vocabulary[@]}" \
      --log-lines 30 --eval-interval 200 --eval-iters 10 --save-interval 200 \
      --save "$runs/checkpoints" --run-dir "$runs" --hf-out "$base"
  fi
  if [[ ! -d $chat ]]; then
    teratron finetune --hf "$base" --data-path "$data/chats.jsonl" "${tuning[@]}" --seq-length 128 --lr 1e-3 \
      --global-batch-size 16 --sft-overlong drop --run-dir "$runs/finetuning" --hf-out "$chat"
  fi
  if [[ ! -s $runs/scores-chat.json ]]; then
    local each
    for each in base chat; do
      teratron eval --hf "$runs/$each" --data "$data/questions.jsonl" --json "$runs/scores-$each.json" --run-dir "$runs"
      teratron eval --hf "$runs/$each" --data "$data/texts.jsonl" --json "$runs/scores-texts-$each.json" --run-dir "$runs"
    done
    teratron generate --hf "$chat" --run-dir "$runs" --max-new-tokens 50 --temperature 0.8 --top-p 0.9 \
      --prompt "The best way to" "A computer is" "Never trust"
    "$ROOT/tools/speedrun_data" --questions "$data" | teratron chat --hf "$chat" --greedy | tee "$runs/chat.txt"
  fi
  say "scores, curves and texts: $runs/report.html; of the finetuning: $runs/finetuning/report.html"
  say "talk to it in the browser: ./run teratron serve --hf $chat (or ./run speedrun --serve), in the terminal: ./run teratron chat --hf $chat"
  [[ $serve == no ]] || teratron serve --hf "$chat"
}
