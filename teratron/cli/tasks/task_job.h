// What `teratron eval` and `teratron tasks` share.
#pragma once

#include "teratron/cli/generate/generate_job.h"
#include "teratron/tasks/replicas.h"

namespace teratron {

/// UserError(config) if a file of this name cannot be written: before a model is loaded.
void check_output(const std::optional<std::string>& path, const char* flag);

/// Writes an object, indented, or nothing without a path.
void write_figures(const std::optional<std::string>& path, const nlohmann::ordered_json& figures);
/// Writes a line for each value.
void write_lines(const std::optional<std::string>& path, const std::vector<nlohmann::ordered_json>& lines);

/// The loaded model on the replicas of the job.
ReplicatedModel replicated_model(const GenerateJob& job);
/// UserError(config) if the tokenizer has ids that the model has not.
void check_vocabulary(const GenerateJob& job);

}  // namespace teratron
