//   own_model pretrain reverse FLAGS... [--encoder-layers 2] [--source-length 16] [--kinds 4]
//     [--generate-interval 100 --generate-prompts prompts.jsonl]
//   own_model generate --load DIR --input prompts.jsonl --output answers.jsonl
// A line of prompts.jsonl: {"encoder_tokens": [5, 6, 7], "tokens": [0], "max_new_tokens": 3, "top_k": 1}
#include "reverse.h"

#include "teratron/cli/program.h"

int main(int argc, char** argv) {
  ReverseSettings settings;
  return teratron::main(argc, argv, {.families = {reverse_family(settings)}});
}
