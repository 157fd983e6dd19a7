// Texts of corpora, whose words are separated by blanks, as they would be written: Megatron-LM's rules, for
// perplexities that can be compared with those of other tokenizations.
#pragma once

#include <string>
#include <string_view>

namespace teratron {

std::string detokenize_wikitext(std::string_view text);
std::string detokenize_ptb(std::string_view text);
/// By what the path contains: "ptb", else "wiki", else "lambada" (unchanged). UserError(config) for others.
std::string detokenize(std::string_view text, const std::string& path);

/// The text of a finetuning task without newlines, with single blanks, " . " closed up.
std::string clean_text(std::string_view text);

}  // namespace teratron
