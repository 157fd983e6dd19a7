// Tokenizer flags, shared by the subcommands.
#pragma once

namespace CLI {
class App;
}

namespace teratron {

struct TokenizerOptions;

/// --tokenizer-type, --vocab-file, --merge-file, --tokenizer-model, --vocab-size, --vocab-extra-ids,
/// --tokenizer-hf-no-include-special-tokens, --tiktoken-pattern, --tiktoken-num-special-tokens,
/// --tokenizer-special-tokens and --compat-version.
void add_tokenizer_flags(CLI::App& app, TokenizerOptions& options);

}  // namespace teratron
