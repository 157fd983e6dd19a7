#include "teratron/telemetry/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace teratron {
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr double kLeft = 58;
constexpr double kRight = 14;
constexpr double kTop = 34;
constexpr double kBottom = 38;

struct Axis {
  double low = 0.0;
  double high = 1.0;
  double step = 0.2;
};

/// Ticks at 1, 2 or 5 times a power of ten, about `count` of them.
Axis nice_axis(double low, double high, int count) {
  if (!(high > low)) {
    const double pad = std::abs(low) > 0.0 ? std::abs(low) * 0.1 : 1.0;
    low -= pad;
    high += pad;
  }
  const double raw = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double factor = raw / power;
  const double step = power * (factor <= 1.0 ? 1.0 : factor <= 2.0 ? 2.0 : factor <= 5.0 ? 5.0 : 10.0);
  return {.low = std::floor(low / step) * step, .high = std::ceil(high / step) * step, .step = step};
}

std::string tick_label(double value, double step) {
  if (std::abs(value) < step * 1e-6) return "0";
  if (std::abs(value) >= 1e9) return fmt::format("{:.3g}G", value / 1e9);
  if (std::abs(value) >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (std::abs(value) >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  if (std::abs(value) < 1e-2) return fmt::format("{:.2g}", value);
  return fmt::format("{:.4g}", value);
}

struct Frame {
  Axis x;
  Axis y;
  double width;
  double height;
  double px(double value) const {
    return kLeft + (value - x.low) / (x.high - x.low) * (width - kLeft - kRight);
  }
  double py(double value) const {
    return height - kBottom - (value - y.low) / (y.high - y.low) * (height - kTop - kBottom);
  }
};

Points finite(const Points& points) {
  Points kept;
  for (const auto& point : points) {
    if (std::isfinite(point.first) && std::isfinite(point.second)) kept.push_back(point);
  }
  return kept;
}

/// Least and greatest value of each of `columns` equal parts, in the order in which they occur.
Points thin(const Points& points, size_t columns) {
  if (points.size() <= 2 * columns) return points;
  Points kept;
  for (size_t column = 0; column < columns; ++column) {
    const auto first = points.begin() + static_cast<ptrdiff_t>(points.size() * column / columns);
    const auto last = points.begin() + static_cast<ptrdiff_t>(points.size() * (column + 1) / columns);
    auto [low, high] = std::minmax_element(first, last, [](auto& a, auto& b) { return a.second < b.second; });
    if (high < low) std::swap(low, high);
    kept.push_back(*low);
    if (high != low) kept.push_back(*high);
  }
  return kept;
}

/// Upper end of the y axis: the maximum, unless the highest 1 % stand out.
double upper_end(std::vector<double> values) {
  const double top = *std::max_element(values.begin(), values.end());
  const size_t rank = values.size() * 99 / 100;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(rank), values.end());
  const double usual = values[rank];
  const double low = *std::min_element(values.begin(), values.end());
  return top - low > 3.0 * (usual - low) && usual > low ? usual + 0.1 * (usual - low) : top;
}

Frame make_frame(const ChartOptions& options, const std::vector<Points>& all) {
  double x_low = std::numeric_limits<double>::infinity();
  double x_high = -x_low;
  std::vector<double> values;
  for (const Points& points : all) {
    for (const auto& [x, y] : points) {
      x_low = std::min(x_low, x);
      x_high = std::max(x_high, x);
      values.push_back(y);
    }
  }
  const double y_low = *std::min_element(values.begin(), values.end());
  const double y_high = upper_end(values);
  Frame frame{.x = nice_axis(x_low, x_high, 8),
              .y = nice_axis(options.from_zero ? std::min(0.0, y_low) : y_low, y_high, 5),
              .width = double(options.width),
              .height = double(options.height)};
  if (x_high > x_low) frame.x.low = x_low, frame.x.high = x_high;
  return frame;
}

std::string draw_axes(const ChartOptions& options, const Frame& frame) {
  std::string svg;
  const double bottom = frame.height - kBottom;
  for (double y = frame.y.low; y <= frame.y.high + frame.y.step * 0.01; y += frame.y.step) {
    svg += fmt::format("<line class='grid' x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}'/>", kLeft,
                       frame.width - kRight, frame.py(y), frame.py(y));
    svg += fmt::format("<text class='tick' text-anchor='end' x='{:.1f}' y='{:.1f}'>{}</text>", kLeft - 7,
                       frame.py(y) + 4, tick_label(y, frame.y.step));
  }
  for (double x = std::ceil(frame.x.low / frame.x.step) * frame.x.step;
       x <= frame.x.high * (1 + 1e-9) + 1e-12; x += frame.x.step) {
    svg += fmt::format("<text class='tick' text-anchor='middle' x='{:.1f}' y='{:.1f}'>{}</text>", frame.px(x),
                       bottom + 16, tick_label(x, frame.x.step));
  }
  svg += fmt::format("<text class='title' x='{:.1f}' y='18'>{}</text>", kLeft, escape_html(options.title));
  svg += fmt::format("<text class='tick' text-anchor='end' x='{:.1f}' y='{:.1f}'>{}</text>",
                     frame.width - kRight, frame.height - 6, escape_html(options.x_label));
  return svg;
}

std::string draw_series(const Series& series, const Points& points, const Frame& frame) {
  const Points shown = thin(points, static_cast<size_t>(frame.width));
  std::string svg = fmt::format("<polyline class='line {}' points='", series.css_class);
  for (const auto& [x, y] : shown) svg += fmt::format("{:.1f},{:.1f} ", frame.px(x), frame.py(y));
  svg += "'/>";
  if (!series.dots) return svg;
  for (const auto& [x, y] : shown) {
    svg += fmt::format(
        "<circle class='dot {}' cx='{:.1f}' cy='{:.1f}' r='3'><title>{:.6g}: {:.6g}</title></circle>",
        series.css_class, frame.px(x), frame.py(y), x, y);
  }
  return svg;
}

std::string draw_legend(const std::vector<Series>& series, const Frame& frame) {
  std::string svg;
  double x = frame.width - kRight;
  for (auto it = series.rbegin(); it != series.rend(); ++it) {
    if (it->name.empty() || it->points.empty()) continue;
    svg += fmt::format("<text class='tick' text-anchor='end' x='{:.1f}' y='18'>{}</text>", x,
                       escape_html(it->name));
    x -= 5.9 * double(it->name.size()) + 8.0;
    svg += fmt::format("<line class='line key {}' x1='{:.1f}' x2='{:.1f}' y1='14' y2='14'/>", it->css_class,
                       x - 14, x);
    x -= 30.0;
  }
  return svg;
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        const bool control = (byte < 0x20 && c != '\t' && c != '\n') || byte == 0x7f;
        if (control) {
          safe += "\xef\xbf\xbd";
        } else {
          safe += c;
        }
      }
    }
  }
  return safe;
}

std::vector<std::pair<double, double>> smooth(const std::vector<std::pair<double, double>>& points,
                                              double span) {
  Points smoothed = finite(points);
  const double keep = 1.0 - 1.0 / std::max(span, 1.0);
  const auto pass = [&](auto first, auto last, auto target) {
    double sum = 0.0;
    double weight = 0.0;
    for (; first != last; ++first, ++target) {
      sum = keep * sum + first->second;
      weight = keep * weight + 1.0;
      target->second += 0.5 * sum / weight;
    }
  };
  const Points values = smoothed;
  for (auto& point : smoothed) point.second = 0.0;
  pass(values.begin(), values.end(), smoothed.begin());
  pass(values.rbegin(), values.rend(), smoothed.rbegin());
  return smoothed;
}

std::string line_chart(const ChartOptions& options, const std::vector<Series>& series) {
  std::vector<Points> all;
  bool any = false;
  for (const Series& one : series) {
    all.push_back(finite(one.points));
    any = any || !all.back().empty();
  }
  if (!any) return "";
  const Frame frame = make_frame(options, all);
  std::string svg = fmt::format("<svg class='chart' viewBox='0 0 {} {}' role='img' aria-label='{}'>",
                                options.width, options.height, escape_html(options.title));
  svg += draw_axes(options, frame) + draw_legend(series, frame);
  // An inner <svg> clips what lies beyond the axes.
  const double width = frame.width - kLeft - kRight;
  const double height = frame.height - kTop - kBottom;
  svg += fmt::format(
      "<svg x='{0:.1f}' y='{1:.1f}' width='{2:.1f}' height='{3:.1f}' viewBox='{0:.1f} {1:.1f} {2:.1f} "
      "{3:.1f}'>",
      kLeft - 4, kTop - 4, width + 8, height + 8);
  for (size_t i = 0; i < series.size(); ++i) {
    if (!all[i].empty()) svg += draw_series(series[i], all[i], frame);
  }
  return svg + "</svg></svg>";
}

}  // namespace teratron
