#include "teratron/cli/config/config_update.h"

#include <filesystem>
#include <set>
#include <utility>

#include "teratron/base/config/config.h"
#include "teratron/base/config/yaml.h"
#include "teratron/base/strings.h"
#include "teratron/cli/config/config_wizard.h"

namespace teratron {

namespace {

std::vector<YamlEntry> entries_of(const std::string& text, const std::string& path) {
  std::vector<Problem> problems;
  const YamlSource source{.text = text, .name = path, .directory = std::filesystem::path(path).parent_path()};
  YamlEntries yaml = parse_yaml(source, problems);
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
  return std::move(yaml.entries);
}

// Canonical names of the top-level keys, sections included.
std::set<std::string> top_keys(const std::vector<YamlEntry>& entries) {
  std::set<std::string> keys;
  for (const YamlEntry& entry : entries) {
    const std::string top = entry.section.empty() ? entry.key : entry.section;
    keys.insert(canonical_name(top.substr(0, top.find('.'))));
  }
  return keys;
}

}  // namespace

UpdatedConfig update_config(const std::string& text, const std::string& path) {
  std::set<std::string> present = top_keys(entries_of(text, path));
  const WizardAnswers meant{.megatron = present.contains("megatron_lm_config")};
  // Without it, as many as there are GPUs; without sections, empty ones, which the reader does not list.
  present.insert({"num_processes", "deepspeed_config", "fsdp_config", "megatron_lm_config"});
  // Older files of Accelerate have switches instead.
  if (present.contains("fp16") || present.contains("bf16")) present.insert("mixed_precision");
  UpdatedConfig updated{.text = text};
  if (!updated.text.empty() && updated.text.back() != '\n') updated.text += '\n';
  for (const std::string& line : split(accelerate_yaml(meant), '\n')) {
    const std::string key = line.substr(0, line.find(':'));
    if (line.empty() || line.front() == ' ' || present.contains(key)) continue;
    updated.text += line + '\n';
    updated.added.push_back(key);
  }
  const std::set<std::string> now = top_keys(entries_of(updated.text, path));
  for (const std::string& key : updated.added) {
    if (!now.contains(key))
      throw config_error({.what = "keys cannot be added behind the end of the document",
                          .where = path,
                          .fix = "Remove what ends it (...), or write it as a block, one key a line"});
  }
  return updated;
}

}  // namespace teratron
