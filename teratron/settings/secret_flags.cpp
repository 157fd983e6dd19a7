#include "teratron/settings/secret_flags.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

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
  std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  if (args.empty() || args.front() != "launch") return args;
  std::vector<std::string> shown;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& word = args[i];
    const Field* const secret = secret_of(word);
    const size_t equals = word.find('=');
    if (!secret || (equals == word.npos && i + 1 == args.size())) {
      shown.push_back(word);
      continue;
    }
    const std::string value = equals == word.npos ? args[++i] : word.substr(equals + 1);
    ::setenv(secret_variable(*secret).c_str(), value.c_str(), /*overwrite=*/1);
  }
  return shown;
}

}  // namespace teratron
