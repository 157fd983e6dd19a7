// What the subcommands share in reading their flags.
#pragma once

#include <span>
#include <string>

namespace CLI {
class App;
}

namespace teratron {

struct TokenizerOptions;

/// Parses `args` into what was declared on `app`. False when help was asked for and printed. A wrong command line
/// is UserError(config).
bool parse_command(CLI::App& app, std::span<const std::string> args);

/// --tokenizer-type, --vocab-file, --merge-file, --tokenizer-model, --vocab-size, --vocab-extra-ids,
/// --tokenizer-hf-no-include-special-tokens and --compat-version.
void add_tokenizer_flags(CLI::App& app, TokenizerOptions& options);

}  // namespace teratron
