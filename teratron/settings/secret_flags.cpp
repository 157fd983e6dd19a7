#include "teratron/settings/secret_flags.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "teratron/settings/arguments.h"

namespace teratron {

namespace {

// Null unless the word is "--flag" or "--flag=value" of a secret setting.
const Field* secret_of(const std::string& word) {
  if (!word.starts_with("--")) return nullptr;
  const Schema::Target* const target = arguments_schema().find(word.substr(0, word.find('=')));
  return target && target->field && target->field->traits.secret ? target->field : nullptr;
}

}  // namespace

std::string secret_variable(const Field& field) {
  std::string name = "TERATRON_" + std::string(field.name);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

std::vector<std::string> take_arguments(int argc, char** argv) {
  const bool launches = argc > 1 && std::string(argv[1]) == "launch";
  std::vector<std::string> args;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const Field* const secret = secret_of(word);
    const size_t equals = word.find('=');
    const bool is_next = equals == word.npos && i + 1 < argc;
    if (!secret || (equals == word.npos && !is_next)) {
      args.push_back(word);
      continue;
    }
    char* const shown = is_next ? argv[++i] : argv[i] + equals + 1;
    const std::string value = shown;
    std::memset(shown, '*', value.size());
    if (launches) {
      ::setenv(secret_variable(*secret).c_str(), value.c_str(), /*overwrite=*/1);
      continue;
    }
    args.push_back(is_next ? word : word.substr(0, equals + 1) + value);
    if (is_next) args.push_back(value);
  }
  return args;
}

}  // namespace teratron
