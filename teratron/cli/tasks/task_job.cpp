#include "teratron/cli/tasks/task_job.h"

#include <filesystem>

#include "teratron/base/file.h"

namespace teratron {

void check_output(const std::optional<std::string>& path, const char* flag) {
  if (!path) return;
  const std::filesystem::path folder = std::filesystem::absolute(*path).parent_path();
  std::error_code ignored;
  if (std::filesystem::is_directory(*path, ignored))
    throw config_error(
        {.what = "it is a folder", .where = fmt::format("{} {}", flag, *path), .fix = "Name a file"});
  if (std::filesystem::is_directory(folder, ignored)) return;
  throw config_error({.what = fmt::format("there is no folder {}", folder.string()),
                      .where = fmt::format("{} {}", flag, *path),
                      .fix = "Create it, or name another file"});
}

void write_figures(const std::optional<std::string>& path, const nlohmann::ordered_json& figures) {
  if (path) write_text(*path, figures.dump(2) + "\n", ExitCode::config);
}

void write_lines(const std::optional<std::string>& path, const std::vector<nlohmann::ordered_json>& lines) {
  if (!path) return;
  AtomicFile file(*path, ExitCode::config);
  for (const nlohmann::ordered_json& line : lines) file.write(dump_line(line) + "\n");
  file.commit();
}

ReplicatedModel replicated_model(const GenerateJob& job) {
  return {.mesh = job.mesh, .model = job.loaded.model, .settings = engine_settings(job)};
}

void check_vocabulary(const GenerateJob& job) {
  const int64_t tokens = job.tokenizer->vocab_size(), vocabulary = job.loaded.model.vocabulary;
  if (tokens <= vocabulary) return;
  throw config_error({.what = fmt::format("the tokenizer has {} tokens and the model {}", tokens, vocabulary),
                      .where = "--tokenizer-type",
                      .fix = "Use the tokenizer that the model was trained with"});
}

}  // namespace teratron
