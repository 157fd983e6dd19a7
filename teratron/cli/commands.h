// The subcommands of `teratron`. `args` are those after the command's name. Results go to stdout; each
// returns the exit code of the process and throws UserError and Fault.
#pragma once

#include <span>
#include <string>

namespace teratron {

struct Registry;

/// bench [--shape NAME] [--precision bf16] [--warm-up-seconds S] [--steps N] [--profiled-steps N]
/// [--json FILE] FLAGS...: times the training step on mock data.
///
/// bench generate [--shape NAME] [--precision bf16] [--batch N] [--prompt-tokens N] [--new-tokens N]
/// [--eager] [--json FILE] FLAGS...: times the generation of text with random weights.
///
/// bench serve [--shape NAME] [--precision bf16] [--batch N] [--longest N] [--listen-port N] FLAGS...: serves
/// random weights, for load generators.
int bench_command(std::span<const std::string> args);

/// ckpt: inspects, verifies and converts checkpoints.
///
///   inspect DIR [--ckpt-step N] [--tensors]   contents; DIR is a --save folder or one of its iter_* folders
///   verify  DIR [--ckpt-step N]               checks every byte against its hash
///   convert SOURCE DESTINATION                from --from-hf, --from-megatron or --load, to --to-hf,
///                                             --to-megatron or --save (cli/ckpt/ckpt_convert.h)
int ckpt_command(std::span<const std::string> args);

/// report RUN: writes report.html of a run from its metrics.jsonl.
int report_command(std::span<const std::string> args);
/// finetune gpt FLAGS...: pretrain gpt --finetune --sft FLAGS....
/// finetune bert|gpt --task classification|regression FLAGS...: a head on labelled texts.
int finetune_command(std::span<const std::string> args, const Registry& registry);

/// config: Accelerate's wizard (config_wizard.h) and its subcommands.
///
///   config [--config-file FILE]           asks and writes the file; prints a command that trains with it
///   config default [--config-file FILE]   writes the defaults without asking (also --default)
///   config update [--config-file FILE]    adds the keys that an older file lacks
///
/// With --model-preset or --hf-config, the layout that fits the GPUs (or --num-gpus and --gpu-memory) is the
/// default of the questions.
int config_command(std::span<const std::string> args);

/// data: inspects indexed datasets, and makes pixel values of images.
///
///   inspect PREFIX...   sizes, dtype, a histogram of the lengths, and the first document: ids, or text with
///                       tokenizer flags
///   verify PREFIX...    checks every index entry; with --vocab-size also every token
///   sample PREFIX       prints documents: ids, or text with tokenizer flags
///   indices PREFIX      builds the index arrays of a GPT dataset as in training (--split, --split-part,
///                       --seq-length, --num-samples, --seed) and writes document_index.npy, sample_index.npy
///                       and shuffle_index.npy to --output-dir
///   image FILE...       pixel values as a vision model takes them (cli/images/image_command.h)
int data_command(std::span<const std::string> args);

/// env: versions, devices and build options.
int env_command(std::span<const std::string> args);

/// eval --load DIR --data FILE.jsonl [--json OUT] [--predictions FILE]: scores continuations, choices and
/// generated answers (tasks/eval/eval_samples.h). All ranks that the model does not need are replicas.
int eval_command(std::span<const std::string> args, const Registry& registry);

/// generate: continues the texts of --prompt, of the lines of --sample-input-file, or of the lines of stdin.
/// Model and tokenizer come from the checkpoint unless flags override them. With --run-dir the texts are
/// added to that run's metrics.jsonl and report.html.
int generate_command(std::span<const std::string> args, const Registry& registry);

/// chat (--hf DIR | --load DIR) FLAGS...: a conversation in the terminal, or by lines of stdin.
int chat_program(std::span<const std::string> args);

/// launch FLAGS... -- COMMAND...: starts the ranks of a job. Returns its exit code if all ranks succeed (0,
/// or 75 after a save on a signal); otherwise throws a Fault with the exit code of the rank that failed
/// first.
int launch_command(std::span<const std::string> args);

/// logits --load DIR --input ids.txt --output out.safetensors: runs the model, in fp32 regardless of the
/// checkpoint's dtype, over the token ids of each line of --input (separated by blanks or commas). Writes
/// fp32 logits, one tensor "logits.<line>" [tokens, vocabulary] per line, counted from 0.
int logits_command(std::span<const std::string> args, const Registry& registry);

/// merge: concatenates indexed datasets. --input FOLDER (all its datasets, by name) or PREFIX... (in order),
/// --output-prefix PREFIX.
int merge_command(std::span<const std::string> args);

/// plan [FAMILY] [--world-size N] [--gpu-memory SIZE] [--show-schedule] FLAGS...: validates a command line of
/// `pretrain` for N ranks (default: those of one model replica) without running it, on any machine.
/// Prints
///
///   settings    those set or derived, each with its source
///   ranks       the mesh
///   stages      layers, parameters and memory of a rank of each pipeline stage; with --gpu-memory, GiB or a
///               GPU's name, whether they fit, and what to change if not
///   schedule    with --show-schedule: a timeline of the stages; needs pipeline sizes only, not a model
///
/// Throws UserError with all problems of the command line, as pretrain does.
int plan_command(std::span<const std::string> args, const Registry& registry);

/// preprocess: JSON lines to indexed datasets, with the flags of Megatron-LM's preprocess_data.py. Progress
/// goes to stderr.
int preprocess_command(std::span<const std::string> args);

/// pretrain gpt FLAGS... `registry`: extensions of a program that links libteratron.
int pretrain_command(std::span<const std::string> args, const Registry& registry);

/// serve --load DIR [--host 127.0.0.1] [--port 5000]: answers HTTP requests with a model: Megatron-LM's and
/// OpenAI's interfaces, and a page (serve/routes.h). SIGTERM lets the answers in progress end, a second one
/// ends at once.
int serve_command(std::span<const std::string> args, const Registry& registry);

/// tasks --task WIKITEXT103 | LAMBADA: evaluates a GPT on texts; RACE | MNLI | QQP: finetunes a BERT and
/// evaluates it; as Megatron-LM's tasks/main.py, with its flags.
int tasks_command(std::span<const std::string> args);

/// tokenizer: trains and runs tokenizers.
///
///   train   --input FILE... --vocab-size N --output DIR [--json-key text] [--special-tokens TOKEN...]
///           *.jsonl and *.json files have a text under the key of each line, others are plain text
///   encode  tokenizer flags; prints the ids of each line of stdin, which is a document; --document: all of
///           stdin is one; --offsets: id:begin-end, in characters (code points) of the document
///   decode  tokenizer flags; prints the text of the ids on each line of stdin
///   info    tokenizer flags; prints vocabulary sizes and special tokens
///   chat    --chat-template NAME | --tokenizer-model DIR [--add-generation-prompt]; prints the text of the
///           conversation (a JSON list of messages) on each line of stdin, as a JSON string
int tokenizer_command(std::span<const std::string> args);

}  // namespace teratron
