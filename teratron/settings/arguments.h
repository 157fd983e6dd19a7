// The settings of a run. Members have Megatron-LM's names. Each is declared by its row in arguments.def
// (default, range, help, status), the only place to add one.
//
//   ParsedArguments parsed = parse_arguments(training_of(family), args);  // models/family.h
//   validate_arguments(parsed, world_size);  // derived values and cross-field checks
//   for (const std::string& line : parsed.notices) notice_line(line);
//   print_line(dump(parsed.args));
//
// Optional settings are std::optional. validate_arguments() sets those with a derived default:
// ffn_hidden_size, kv_channels, seq_length or encoder_seq_length, max_position_embeddings, global_batch_size,
// num_micro_batches, lr_decay_iters or lr_decay_samples, start_weight_decay, end_weight_decay,
// dataloader_type, tokenizer_type, split, world_size, data_parallel_size; with --mock-data also what a
// training needs besides a model (checks/mock_defaults.cpp). --no-position-embedding alone sets
// position_embedding_type to none. Values set by the user are never changed; settings without effect give a
// notice.
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
#define GROUP(...)
#define FIELD(type, name, initial, ...) field::type name = initial;
#define MODEL FIELD
#define PLANNED FIELD
#define NO_OP FIELD
#define DERIVED FIELD
#include "teratron/settings/arguments.def"
#undef GROUP
#undef FIELD
#undef MODEL
#undef PLANNED
#undef NO_OP
#undef DERIVED
};

/// Sources of values that the user did not set.
inline constexpr std::string_view derived_source = "derived";
inline constexpr std::string_view mock_default_source = "default of --mock-data";
inline constexpr std::string_view program_default_source = "default of the program";
/// Whether the user set the value.
bool is_users(std::string_view source);

/// Default of a program built on the library, in place of the table's: {"seq_length", "128"}. Lists have
/// blanks between their values.
struct ArgsDefault {
  std::string name;
  std::string value;
};

struct Validation;

/// A program that takes settings: the training of a family of models, or a command.
struct Program {
  struct Required {
    std::string_view setting, meaning;
  };

  ProgramNames names = {"training"};                // rows of arguments.def choose them with .program
  std::string tokenizer_type = "GPT2BPETokenizer";  // the default
  /// Settings without which its model cannot be built. encoder_seq_length stands for seq_length.
  std::vector<Required> required = {{"num_layers", "the number of transformer layers"},
                                    {"hidden_size", "the hidden size of the transformer"},
                                    {"num_attention_heads", "the number of attention heads"},
                                    {"seq_length", "the sequence length in tokens"}};
  /// Derives settings from others, before all checks; may be null.
  std::function<void(Validation&)> derive = nullptr;
  bool models_are_saved = false;  // it runs the model of a checkpoint
};

struct ParsedArguments {
  Program program;
  Arguments args;
  Sources sources;  // field -> "--tp", "run.yaml:3:1", derived_source; absent: the table's default
  std::vector<std::string> notices;
  bool help = false;  // --help was given; nothing else was checked
  /// With defer_problems: problems of parsing, for validate_arguments() to report, and the fields concerned.
  std::vector<Problem> problems = {};
  std::vector<std::string> unresolved = {};
  std::shared_ptr<const Schema> schema = nullptr;  // with extra_fields; null: arguments_schema()
};

/// Returns the settings of a named architecture (--model-preset, --hf-config, --hf); those in `given`
/// override them.
using ArchitectureResolver =
    std::function<ParseResult(std::string_view program, const Schema& schema, const ParseResult& given)>;

struct ParseOptions {
  bool refuse_planned = true;   // false: accept settings that are not implemented yet (planning, conversion)
  bool defer_problems = false;  // leave problems to validate_arguments(), which reports them with its own
  std::span<const Field> extra_fields = {};    // flags of a program (train/registry.h), and rows it changed
  std::span<const ArgsDefault> defaults = {};  // its defaults, the last one of a setting wins
  ArchitectureResolver architecture =
      nullptr;  // architecture_settings (hf/architecture.h); null: none accepted
};

/// Merges, in increasing priority, the program's defaults, the architecture of --model-preset, --hf-config or
/// --hf, Accelerate's environment variables, the YAML file of --config-file, and the flags. Throws
/// UserError(config) with all problems.
ParsedArguments parse_arguments(const Program& program, std::span<const std::string> args,
                                const ParseOptions& options = {});

struct ValidateOptions {
  bool needs_model = true;  // false: the model's sizes may come from a checkpoint
  bool needs_data = true;   // false: no dataset and training length required (planning, generation)
};

/// Sets derived values and checks all settings against each other and the number of ranks. Throws
/// UserError(config) with all problems, each with the values, the reason and the nearest valid choices.
void validate_arguments(ParsedArguments& parsed, int64_t world_size, const ValidateOptions& options = {});

/// Number of key/value heads: num_query_groups with group_query_attention, else num_attention_heads.
int64_t query_groups(const Arguments& args);
/// Vocabulary size padded to a multiple of make_vocab_size_divisible_by * tensor_model_parallel_size, or
/// padded_vocab_size if set (throws UserError(config) if smaller than the vocabulary).
int64_t padded_vocab_size(const Arguments& args, int64_t vocab_size);

/// The table of Arguments.
const Schema& arguments_schema();
/// The row `name` of the table with its value in `args`: for commands that share flags with training. `help`
/// replaces the row's.
Field bound_setting(std::string_view name, Arguments* args, std::string_view help = {});

/// Megatron-LM's listing of all arguments.
std::string dump(const Arguments& args);
std::string dump(const ParsedArguments& parsed);
/// dump() of the settings that the user set to other values than their defaults, with a count of the others:
/// what follows from these or from the config.json of a model.
std::string dump_changes(const ParsedArguments& parsed);
/// A file for --config-file that gives these settings again, with where each was set; what was derived is in
/// comments. Without secrets.
std::string resolved_yaml(const ParsedArguments& parsed);
/// A line "name = value  (source)" for each setting that was set or derived.
std::string explain(const ParsedArguments& parsed);
/// JSON for checkpoints, and its inverse. `unknown` receives unknown keys. Throws UserError(checkpoint).
std::string to_json(const Arguments& args);
Arguments arguments_from_json(std::string_view text, const std::string& where,
                              std::vector<std::string>* unknown = nullptr);
/// Text of --help; new `extra_fields` come last. Throws UserError(config) for defaults that cannot be set.
std::string arguments_help(const HelpOptions& options, std::span<const Field> extra_fields = {},
                           std::span<const ArgsDefault> defaults = {});
/// Text of docs/flags.md.
std::string arguments_document();

}  // namespace teratron
