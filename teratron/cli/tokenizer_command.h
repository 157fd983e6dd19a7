// teratron tokenizer {train,encode,decode,info}
#pragma once

#include <span>
#include <string>

namespace teratron {

/// `args` come after the word "tokenizer". Results go to stdout; returns the exit code. Throws UserError and
/// Fault.
///
///   train   --input FILE... --vocab-size N --output DIR [--json-key text] [--special-tokens TOKEN...]
///           files named *.jsonl or *.json give the text under the key of each line, others are plain text
///   encode  tokenizer flags; reads stdin, one line one document, and prints its ids;
///           --document: all of stdin is one; --offsets: id:begin-end, in characters (code points) of the document
///   decode  tokenizer flags; each line of stdin holds ids, and its text is printed
///   info    tokenizer flags; prints the sizes and special tokens
///
/// Tokenizer flags: --tokenizer-type, --vocab-file, --merge-file, --tokenizer-model, --vocab-size,
/// --vocab-extra-ids, --compat-version.
int tokenizer_command(std::span<const std::string> args);

}  // namespace teratron
