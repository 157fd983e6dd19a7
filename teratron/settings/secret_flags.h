// Flags whose values other users of the machine must not see (FieldTraits::secret).
#pragma once

#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/config/config.h"

namespace teratron {

/// The environment variable that can hold the value of a secret setting: TERATRON_API_KEY.
std::string secret_variable(const Field& field);

/// Their flags.
inline constexpr std::array<std::string_view, 2> secret_flags = {"--api-key", "--api_key"};
/// Flags of published programs, which are not used.
inline constexpr std::array<std::string_view, 2> unused_secret_flags = {"--hub_token", "--hub-token"};

/// Overwrites their values where `ps` reads them; `argv` then refers to copies. Needs no initialized library:
/// the program does this before all else, when the loader is done.
inline void hide_secrets(char** argv) {
  const auto hide = [](char*& word, size_t begin) {
    char* const copy = ::strdup(word);
    if (!copy) return;
    std::memset(word + begin, '*', std::strlen(word + begin));
    word = copy;
  };
  const auto hide_value = [&](char** word, std::string_view flag) {
    const std::string_view text = *word;
    if (text == flag && word[1]) hide(word[1], 0);
    if (text.starts_with(flag) && text.substr(flag.size()).starts_with('=')) hide(*word, flag.size() + 1);
  };
  for (char** word = argv; *word; ++word) {
    for (const std::string_view flag : secret_flags) hide_value(word, flag);
    for (const std::string_view flag : unused_secret_flags) hide_value(word, flag);
  }
}

/// The arguments of the program. Ranks of `teratron launch` find secrets in their environment.
std::vector<std::string> take_arguments(int argc, char** argv);

}  // namespace teratron
