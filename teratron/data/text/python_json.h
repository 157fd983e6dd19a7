// Python's json module, with which Megatron-LM reads its lines, accepts more than JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace teratron {

/// Replaces a lone surrogate, which UTF-8 cannot encode: U+FFFF, a noncharacter.
inline constexpr std::string_view kLoneSurrogate = "\xef\xbf\xbf";

/// Rewrites what only Python accepts, without changing the length: NaN, Infinity and numbers of any size
/// become 0, escapes of lone surrogates that of kLoneSurrogate. Nothing if the line has none of these.
std::optional<std::string> to_strict_json(std::string_view line);

}  // namespace teratron
