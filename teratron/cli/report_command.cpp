#include <filesystem>

#include "teratron/base/config/command_line.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/telemetry/report.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

// The metrics of a folder that --save or --run-dir named, or the file itself.
fs::path metrics_of(const std::string& run) {
  std::error_code ignored;
  const fs::path given(run), file = fs::is_directory(given, ignored) ? given / "metrics.jsonl" : given;
  if (fs::is_regular_file(file, ignored)) return file;
  throw data_error({.what = "there is no metrics.jsonl",
                    .where = printable(run, 4096),
                    .fix = "Give the folder of a run: that of --run-dir or, without it, of --save"});
}

}  // namespace

int report_command(std::span<const std::string> args) {
  std::string run;
  std::optional<std::string> output;
  if (!read_command(
          {.name = "teratron report",
           .example = "teratron report checkpoints",
           .usage = "RUN [--output FILE]",
           .summary =
               "Write report.html of a run, finished, killed or in progress: curves, evaluations, texts "
               "and settings on one page.",
           .fields = {bound_field("run", &run, "Folder of --save or --run-dir, or its metrics.jsonl",
                                  {.required = true, .positional = true}),
                      bound_field("output", &output, "File to write; default: report.html in the folder")}},
          args))
    return 0;
  const fs::path metrics = metrics_of(run);
  const fs::path page = output ? fs::path(*output) : metrics.parent_path() / "report.html";
  write_report(metrics, page);
  print("wrote {}", printable(page.string(), 4096));
  return 0;
}

}  // namespace teratron
