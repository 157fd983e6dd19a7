#include "teratron/telemetry/report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "teratron/base/file.h"
#include "teratron/telemetry/chart.h"
#include "teratron/telemetry/log_lines.h"

namespace teratron {
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1c2330; --soft: #667085; --rule: #e3e7ee;
  --train: #2f6fde; --validation: #d9480f; --lr: #0c8a6b; --norm: #7a4fd0; --speed: #b4690e; --mfu: #1f8fb3; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12151b; --card: #1b2029; --ink: #e6e9ef; --soft: #98a2b3; --rule: #2c333f;
    --train: #6ea1ff; --validation: #ff8f5c; --lr: #4fd1ac; --norm: #b292ff; --speed: #f0b35e; --mfu: #6cc9e8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 36px 24px 64px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 34px 0 12px; }
.sub { color: var(--soft); margin: 4px 0 24px; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin-bottom: 12px; }
.card, .chart, table, .sample { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.card { padding: 12px 16px; flex: 1 1 125px; }
.card b { display: block; font-size: 22px; font-weight: 650; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 12px; margin-top: 12px; }
.chart { display: block; width: 100%; height: auto; }
.grid { stroke: var(--rule); stroke-width: 1; }
.tick { fill: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
.title { fill: var(--ink); font-size: 13px; font-weight: 600; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.faint { stroke-width: 1; opacity: 0.35; }
.line.train { stroke: var(--train); } .line.validation { stroke: var(--validation); } .line.lr { stroke: var(--lr); }
.line.norm { stroke: var(--norm); } .line.speed { stroke: var(--speed); } .line.mfu { stroke: var(--mfu); }
.dot.validation { fill: var(--validation); }
.key { stroke-width: 3; opacity: 1; }
table { width: 100%; border-collapse: separate; border-spacing: 0; overflow: hidden; }
td, th { padding: 7px 16px; text-align: left; border-top: 1px solid var(--rule); vertical-align: top; }
tr:first-child td, tr:first-child th { border-top: 0; }
th { font-weight: 600; } td:first-child { color: var(--soft); width: 32%; }
td.number { font-variant-numeric: tabular-nums; }
.sample { padding: 12px 16px; margin-bottom: 12px; }
.sample pre { margin: 6px 0 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 14px/1.55 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }
.sample .prompt { font-weight: 700; color: var(--train); } .when { color: var(--soft); font-size: 13px; }
)css";

double first_loss(const Losses& losses) {
  return losses.empty() ? NAN : losses.front().second;
}

double median(std::vector<double> values) {
  if (values.empty()) return NAN;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Over the last ten values: one step alone is too noisy to quote.
double mean_of_last(const Points& points) {
  const size_t count = std::min<size_t>(points.size(), 10);
  double sum = 0.0;
  for (size_t i = points.size() - count; i < points.size(); ++i) sum += points[i].second;
  return count == 0 ? NAN : sum / double(count);
}

template <typename Get>
Points points_of(const RunLog& log, Get&& get) {
  Points points;
  for (const auto& step : log.steps) points.emplace_back(double(step.iteration), get(step));
  return points;
}

double tokens_per_second(const RunLog::Step& step) {
  return step.seconds > 0.0 ? double(step.tokens) / step.seconds : NAN;
}

std::string card(const std::string& value, const std::string& label) {
  return fmt::format("<div class='card'><b>{}</b><span>{}</span></div>", escape_html(value),
                     escape_html(label));
}

std::string cards(const RunLog& log) {
  std::string html = "<div class='cards'>";
  if (!log.steps.empty()) {
    Points losses;
    std::vector<double> rates;
    double seconds = 0.0;
    double tokens = 0.0;
    for (const auto& step : log.steps) {
      if (!step.skipped) losses.emplace_back(double(step.iteration), first_loss(step.losses));
      if (std::isfinite(tokens_per_second(step))) rates.push_back(tokens_per_second(step));
      if (std::isfinite(step.seconds)) seconds += step.seconds;
      tokens += double(step.tokens);
    }
    html += card(fmt::format("{} / {}", log.steps.back().iteration, log.train_iters), "iterations");
    if (std::isfinite(mean_of_last(losses))) {
      html += card(fmt::format("{:.4f}", mean_of_last(losses)), "training loss, last 10 steps");
    }
    for (auto it = log.evaluations.rbegin(); it != log.evaluations.rend(); ++it) {
      const double loss = first_loss(it->losses);
      if (it->split != "validation" || !std::isfinite(loss)) continue;
      html += card(fmt::format("{:.4f}", loss),
                   fmt::format("validation loss (perplexity {:.2f})", perplexity(loss)));
      break;
    }
    if (!rates.empty()) html += card(short_count(median(rates)), "tokens per second, median");
    html += card(short_count(tokens), "tokens seen");
    html += card(short_duration(seconds), "in training steps");
  }
  if (log.peak_memory > 0)
    html += card(fmt::format("{:.1f} GiB", double(log.peak_memory) / 1073741824.0), "peak memory");
  return html + "</div>";
}

std::string loss_chart(const RunLog& log) {
  const Points raw =
      points_of(log, [](const auto& step) { return step.skipped ? NAN : first_loss(step.losses); });
  Series validation{.name = "validation", .css_class = "validation", .points = {}, .dots = true};
  for (const auto& evaluation : log.evaluations) {
    if (evaluation.split == "validation") {
      validation.points.emplace_back(double(evaluation.iteration), first_loss(evaluation.losses));
    }
  }
  const double span = std::clamp(double(raw.size()) / 50.0, 1.0, 100.0);
  const std::string name =
      log.steps.empty() || log.steps.front().losses.empty() ? "loss" : log.steps.front().losses.front().first;
  return line_chart({.title = name, .width = 1012, .height = 340},
                    {{.name = "", .css_class = "train faint", .points = raw},
                     {.name = "training (smoothed)", .css_class = "train", .points = smooth(raw, span)},
                     validation});
}

std::string small_charts(const RunLog& log) {
  Points mfu;
  for (const auto& [iteration, share] : log.mfu) mfu.emplace_back(double(iteration), share * 100.0);
  const auto chart = [](const char* title, const char* css_class, Points points) {
    return line_chart({.title = title, .width = 500, .height = 220, .from_zero = true},
                      {{.name = "", .css_class = css_class, .points = std::move(points)}});
  };
  return "<div class='grid2'>" +
         chart("learning rate", "lr", points_of(log, [](const auto& step) { return step.learning_rate; })) +
         chart("gradient norm", "norm", points_of(log, [](const auto& step) { return step.grad_norm; })) +
         chart("tokens per second", "speed", points_of(log, tokens_per_second)) +
         chart("model FLOPs utilisation (%)", "mfu", std::move(mfu)) + "</div>";
}

std::string row(const std::string& name, const std::string& value) {
  return fmt::format("<tr><td>{}</td><td>{}</td></tr>", escape_html(name), escape_html(value));
}

std::string facts(const RunLog& log) {
  std::string html = "<h2>The run</h2><table>";
  for (const auto& [name, value] : log.facts) html += row(name, value);
  html += row("first event", log.first_time) + row("last event", log.last_time);
  html += row("ended", log.end_reason.empty() ? "no end was logged" : log.end_reason);
  const auto skipped =
      std::count_if(log.steps.begin(), log.steps.end(), [](const auto& step) { return step.skipped; });
  html += row("skipped iterations", fmt::format("{}", skipped));
  html += row("checkpoints saved", fmt::format("{}", log.saves));
  if (log.restarts > 0) html += row("resumed", fmt::format("{} times", log.restarts));
  if (log.unreadable_lines > 0)
    html += row("unreadable lines in the log", fmt::format("{}", log.unreadable_lines));
  return html + "</table>";
}

std::string evaluations(const RunLog& log) {
  if (log.evaluations.empty()) return "";
  std::string html =
      "<h2>Evaluations</h2><table><tr><th>iteration</th><th>split</th><th>loss</th><th>perplexity</th></tr>";
  constexpr size_t kShown = 20;
  const size_t first = log.evaluations.size() > kShown ? log.evaluations.size() - kShown : 0;
  for (size_t i = first; i < log.evaluations.size(); ++i) {
    const auto& evaluation = log.evaluations[i];
    for (const auto& [name, loss] : evaluation.losses) {
      html += fmt::format(
          "<tr><td class='number'>{}</td><td>{}</td><td class='number'>{:.4f}</td><td "
          "class='number'>{:.2f}</td></tr>",
          evaluation.iteration, escape_html(evaluation.split + " " + name), loss, perplexity(loss));
    }
  }
  return html + "</table>";
}

std::string samples(const RunLog& log) {
  if (log.samples.empty()) return "";
  std::string html = "<h2>Generated text</h2>";
  constexpr size_t kShown = 12;
  const size_t first = log.samples.size() > kShown ? log.samples.size() - kShown : 0;
  for (size_t i = first; i < log.samples.size(); ++i) {
    const SampleText& sample = log.samples[i];
    html += fmt::format(
        "<div class='sample'><span class='when'>after iteration {}</span><pre><span "
        "class='prompt'>{}</span>{}</pre></div>",
        sample.iteration, escape_html(sample.prompt), escape_html(sample.text));
  }
  return html;
}

}  // namespace

std::string render_report(const RunLog& log) {
  std::string title = "Training report";
  for (const auto& [name, value] : log.facts) {
    if (name == "model") title = value;
  }
  std::string html = "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>";
  html += "<meta name='viewport' content='width=device-width, initial-scale=1'>";
  html += fmt::format("<title>{}</title><style>{}</style></head><body><main>", escape_html(title), kStyle);
  html += fmt::format("<h1>{}</h1><p class='sub'>Teratron training report{}</p>", escape_html(title),
                      log.run_id.empty() ? "" : " · run " + escape_html(log.run_id));
  html += cards(log) + loss_chart(log) + small_charts(log) + samples(log) + evaluations(log) + facts(log);
  return html + "</main></body></html>\n";
}

void write_report(const std::filesystem::path& jsonl, const std::filesystem::path& html) {
  write_text(html, render_report(read_run_log(jsonl)), ExitCode::config);
}

}  // namespace teratron
