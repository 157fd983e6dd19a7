#include "teratron/cli/resume_advice.h"

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/base/strings.h"
#include "teratron/settings/own_run.h"

namespace teratron {

namespace {

// Without what would start over.
std::string command_to_go_on() {
  std::string text;
  for (const std::string& word : words_of_process()) {
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
