// report.html: a run on one page that works offline, light and dark. The file of this name here is the
// template: its script computes and draws everything from the metrics, which are inlined as JSON. Stylesheet
// and charts are those of all pages (page/).
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace teratron {

/// metrics.jsonl as one object: arrays of events "interval", "evaluation", "sample", "score", "save", "end".
/// "step" has rows of the columns that "columns" names, thinned to 10,000, sums and peak are in "totals".
/// "run" is the last run event, "runs" are all starts with iteration, time and facts; "restarts",
/// "invalid_lines", "first_time", "last_time". Events that a resumed run repeated are those of the last
/// attempt. Lines that are not JSON objects (a job may have died while writing one) are counted and skipped.
/// UserError(data) if the file is missing or has no event.
nlohmann::ordered_json read_metrics(const std::filesystem::path& jsonl);

/// The page for read_metrics(); about 100 bytes per row, 1 MB at most.
std::string render_report(const nlohmann::ordered_json& metrics);

/// read_metrics, render_report, and an atomic write; UserError(config) for the target. A training does so
/// after each save and at its end.
void write_report(const std::filesystem::path& jsonl, const std::filesystem::path& html);

}  // namespace teratron
