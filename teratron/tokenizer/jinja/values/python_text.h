// Texts as Python's str has them: counted in code points.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace teratron::jinja {

class Workspace;

/// Bytes of the code point that begins at `at`.
size_t character_bytes(std::string_view text, size_t at);
int64_t count_characters(std::string_view text);
/// The byte at which the code point with this index begins; the end of the text beyond the last.
size_t character_offset(std::string_view text, int64_t index);

/// As std::string_view's, in linear time.
size_t find_text(Workspace& workspace, std::string_view text, std::string_view pattern, size_t from);
size_t rfind_text(Workspace& workspace, std::string_view text, std::string_view pattern);

bool is_blank(uint32_t code_point);
enum class Ends : uint8_t { both, left, right };
/// str.strip(), lstrip(), rstrip(). `characters`: those to remove; default white space.
std::string_view stripped(std::string_view text, Ends ends, std::optional<std::string_view> characters = {});
/// str.split() without an argument.
std::vector<std::string_view> words(std::string_view text, int64_t most);
std::vector<std::string_view> lines(std::string_view text, bool with_ends);
/// repr(text)
std::string quoted_text(std::string_view text);

/// An error for cased letters beyond ASCII, of which there is no table.
std::string upper_text(Workspace& workspace, std::string_view text);
std::string lower_text(std::string_view text);
/// The first character in upper case, the others in lower case.
std::string capitalized(Workspace& workspace, std::string_view text);

}  // namespace teratron::jinja
