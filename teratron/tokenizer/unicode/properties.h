// Properties of characters in regexes, as Oniguruma in Hugging Face tokenizers knows them (generated tables:
// unicode_properties.inc).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "teratron/tokenizer/unicode/code_set.h"

namespace teratron::unicode {

/// \p{name}: general categories, scripts, blocks ("InGreek"), some binary properties. Case, spaces, '_' and
/// '-' of names do not count. nullopt for other names.
std::optional<CodeSet> property(std::string_view name);

/// [[:name:]]; nullopt for other names.
std::optional<CodeSet> posix_class(std::string_view name);

/// With all code points that differ from one of them in case only.
CodeSet with_other_case(const CodeSet& set);

/// Whether one of the characters equals two or three others but for case, as U+00DF does "ss".
bool has_long_case_fold(const CodeSet& set);
/// Whether some character equals a text that begins with these two.
bool begins_long_case_fold(uint32_t first, uint32_t second);

}  // namespace teratron::unicode
