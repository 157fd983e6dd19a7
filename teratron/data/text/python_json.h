// What Python's json takes beside JSON: Megatron-LM reads its lines with it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace teratron {

/// Stands in texts for half of a surrogate pair, which UTF-8 cannot write: U+FFFF, no character.
inline constexpr std::string_view kHalfPair = "\xef\xbf\xbf";

/// The line with what only Python takes made plain: NaN, Infinity and numbers of any size become 0, escaped halves of
/// surrogate pairs kHalfPair's escape. The length stays. Nothing when there is no such thing in it.
std::optional<std::string> without_python_json(std::string_view line);

}  // namespace teratron
