#include "teratron/cli/resume_advice.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/settings/own_run.h"

namespace teratron {

namespace {

// As a shell reads it.
std::string shell_word(const std::string& word) {
  constexpr std::string_view plain = "-_./=:,+@%";
  const bool is_plain = !word.empty() && std::ranges::all_of(word, [&](unsigned char c) {
    return std::isalnum(c) != 0 || plain.find(static_cast<char>(c)) != plain.npos;
  });
  if (is_plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// The words of this process, as the kernel has them.
std::string command_to_go_on() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text, word;
  while (std::getline(file, word, '\0')) {
    if (word == "--fresh" || word.starts_with("--fresh=")) continue;
    text += (text.empty() ? "" : " ") + shell_word(word);
  }
  return printable(text, 16384);
}

std::optional<std::string> last_folder(const std::optional<std::string>& save) {
  try {
    const auto last = save ? last_checkpoint(*save) : std::nullopt;
    if (last) return printable(last->path.string(), 4096);
  } catch (const std::exception&) {
    return std::nullopt;  // the job's own error counts
  }
  return std::nullopt;
}

}  // namespace

void print_resume_advice(const std::optional<std::string>& save) {
  if (!save) return;
  const std::optional<std::string> folder = last_folder(save);
  if (folder) {
    notice("the last checkpoint is {}. To go on from it: {}", *folder, command_to_go_on());
  } else {
    notice("no checkpoint was saved. To start again: {}", command_to_go_on());
  }
}

std::string from_last_checkpoint(const std::optional<std::string>& save) {
  const std::optional<std::string> folder = last_folder(save);
  return folder ? " from " + *folder : "";
}

}  // namespace teratron
