// The settings of a run. Members carry Megatron-LM's names; their rows (default, range, help, status) are in
// arguments.def, which is the only place to add one.
//
//   ParsedArguments parsed = parse_arguments("pretrain gpt", args);   // throws UserError(config) with all
//   problems finish(parsed, world_size);                                       // derived values and
//   cross-field checks for (const std::string& line : parsed.notices) notice_line(line);
//   print_line(dump(parsed.args));
//
// Optional values are std::optional; after finish() those that a derived default exists for are set:
// ffn_hidden_size, kv_channels, seq_length or encoder_seq_length, max_position_embeddings, global_batch_size,
// num_micro_batches, lr_decay_iters or lr_decay_samples, start_weight_decay, end_weight_decay,
// dataloader_type, tokenizer_type, split, world_size, data_parallel_size. position_embedding_type becomes
// none under --no-position-embedding alone. Nothing that the user set is ever changed; what cannot apply
// yields a notice.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/config/config.h"

namespace teratron {

struct Arguments {
#define GROUP(title)
#define FIELD(type, name, initial, ...) field::type name = initial;
#define PLANNED FIELD
#define INHERENT FIELD
#define DERIVED FIELD
#include "teratron/settings/arguments.def"
#undef GROUP
#undef FIELD
#undef PLANNED
#undef INHERENT
#undef DERIVED
};

/// What the user gave, where each value comes from, and lines to tell the user once.
struct ParsedArguments {
  std::string program;  // "gpt", "bert", "t5", "generate"
  Arguments args;
  Sources sources;  // field -> "--tp", "run.yaml:3:1", "derived"; absent: default
  std::vector<std::string> notices;
  bool help = false;  // --help was given: nothing else was checked
  /// Under defer_problems: what parsing found, for finish() to tell, and the fields concerned.
  std::vector<Problem> problems = {};
  std::vector<std::string> unsettled = {};
  std::shared_ptr<const Schema> schema = nullptr;  // with own_fields; null: arguments_schema()
};

/// Settings that a named architecture (--model-preset, --hf-config) stands for; everything in `given` overrides them.
using ArchitectureResolver = std::function<Settings(const Schema& schema, const Settings& given)>;

struct ParseOptions {
  bool refuse_planned = true;  // false: let settings through that nothing honours yet (planning, converting)
  /// Problems are not thrown but left to finish(), which tells them together with its own.
  bool defer_problems = false;
  std::span<const Field> own_fields = {};  // of a program built on the library (train/registry.h)
  ArchitectureResolver architecture =
      nullptr;  // architecture_settings (hf/architecture.h); null: none is accepted
};

/// Reads, from weakest to strongest, the architecture that --model-preset or --hf-config names, what Accelerate's
/// launcher left in the environment, the YAML file that --config-file names, and the flags. `program`: "gpt", "pretrain_gpt.py", "pretrain
/// bert", "generate"...; it decides the tokenizer's default. Throws UserError(config) with every problem
/// found.
ParsedArguments parse_arguments(std::string_view program, std::span<const std::string> args,
                                const ParseOptions& options = {});

struct FinishOptions {
  bool needs_model = true;  // false: the model's sizes may still come from a checkpoint
  bool needs_data = true;   // false: no dataset and no training length is needed (planning, generation)
};

/// Fills derived values in and checks all fields against each other and the number of ranks.
/// Throws UserError(config) with every problem, each with its value, reason and the nearest valid choices.
void finish(ParsedArguments& parsed, int64_t world_size, const FinishOptions& options = {});

/// Key and value heads of a layer: num_query_groups under group_query_attention, else one per attention head.
int64_t query_groups(const Arguments& args);
/// Vocabulary padded to a multiple of make_vocab_size_divisible_by * tensor_model_parallel_size, or
/// padded_vocab_size when given (throws UserError(config) when that is smaller than the vocabulary).
int64_t padded_vocab_size(const Arguments& args, int64_t vocab_size);

/// The table behind Arguments.
const Schema& arguments_schema();

/// Megatron-LM's listing of all arguments.
std::string dump(const Arguments& args);
std::string dump(const ParsedArguments& parsed);
/// One line "name = value  (source)" for each setting that was given or derived.
std::string explain(const ParsedArguments& parsed);
/// JSON copy for checkpoints, and back. `unknown` receives keys of other versions. Throws
/// UserError(checkpoint).
std::string to_json(const Arguments& args);
Arguments arguments_from_json(std::string_view text, const std::string& where,
                              std::vector<std::string>* unknown = nullptr);
/// Text of --help; `own_fields` come last.
std::string arguments_help(std::string_view usage, std::span<const Field> own_fields = {});
/// Text of docs/flags.md.
std::string arguments_document();

}  // namespace teratron
