#!/usr/bin/env bash
# NVIDIA's 345M models as they were downloaded (docs/checkpoints.md): each FILE is a zip, or a folder it was unpacked to.
#
#   GPT=megatron_lm_345m_v0.0.zip VOCAB_FILE=gpt2-vocab.json MERGE_FILE=gpt2-merges.txt examples/ngc_345m.sh generate "Text"
#   GPT=... VOCAB_FILE=... MERGE_FILE=... VALID_DATA=lambada_test.jsonl examples/ngc_345m.sh lambada
#   GPT=... VOCAB_FILE=... MERGE_FILE=... examples/ngc_345m.sh serve
#   BERT=megatron_bert_345m_v0.1_uncased.zip VOCAB_FILE=bert-large-uncased-vocab.txt MNLI=glue/MNLI \
#     examples/ngc_345m.sh mnli
#
# Downloads nothing. What follows the first arguments is added to the command.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/find_teratron.sh"

case "${1:-}" in
  generate | lambada | serve)
    MODEL=(
      --load "${GPT:?megatron_lm_345m_v0.0.zip}"
      --tokenizer-type GPT2BPETokenizer
      --vocab-file "${VOCAB_FILE:?gpt2-vocab.json}"
      --merge-file "${MERGE_FILE:?gpt2-merges.txt}"
    )
    ;;
esac

case "${1:-}" in
  generate)
    "${teratron[@]}" generate "${MODEL[@]}" --prompt "${2:?a text to continue}" "${@:3}"
    ;;
  lambada)
    "${teratron[@]}" tasks --task LAMBADA --strict-lambada --valid-data "${VALID_DATA:?lambada_test.jsonl}" \
      --seq-length 1024 --micro-batch-size 8 "${MODEL[@]}" "${@:2}"
    ;;
  serve)
    "${teratron[@]}" serve "${MODEL[@]}" "${@:2}"
    ;;
  mnli)
    : "${MNLI:?folder with train.tsv, dev_matched.tsv and dev_mismatched.tsv}"
    "${teratron[@]}" tasks --task MNLI \
      --pretrained-checkpoint "${BERT:?megatron_bert_345m_v0.1_uncased.zip}" \
      --tokenizer-type "${TOKENIZER_TYPE:-BertWordPieceLowerCase}" \
      --vocab-file "${VOCAB_FILE:?bert-large-uncased-vocab.txt}" \
      --train-data "$MNLI/train.tsv" \
      --valid-data "$MNLI/dev_matched.tsv" "$MNLI/dev_mismatched.tsv" \
      --epochs 5 --micro-batch-size 8 --seq-length 512 --lr 5.0e-5 --lr-warmup-fraction 0.065 \
      --weight-decay 1.0e-1 --save "${SAVE:-checkpoints/bert_345m_mnli}" "${@:2}"
    ;;
  *)
    echo "usage: $0 generate TEXT | lambada | serve | mnli [FLAGS...]" >&2
    exit 2
    ;;
esac
