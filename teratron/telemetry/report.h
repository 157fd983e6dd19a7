// report.html: a run on one page that opens anywhere: inline SVG and CSS, no script, no external resource,
// light and dark.
#pragma once

#include <filesystem>
#include <string>

#include "teratron/telemetry/run_log.h"

namespace teratron {

/// The page: headline figures, curves of loss, learning rate, gradient norm, throughput and MFU, the run's
/// facts, evaluations and generated samples. What the log lacks is left out.
std::string render_report(const RunLog& log);

/// read_run_log, render_report, and an atomic write. UserError(data) as read_run_log; UserError(config) for
/// the target.
void write_report(const std::filesystem::path& jsonl, const std::filesystem::path& html);

}  // namespace teratron
