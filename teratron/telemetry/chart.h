// Line charts as inline SVG: no script, no external resource, colours by CSS classes so that the page
// decides.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace teratron {

struct Series {
  std::string name;                               // in the legend; empty: no entry there
  std::string css_class;                          // colour and width: "train", "smooth", "validation"...
  std::vector<std::pair<double, double>> points;  // ascending x; points that are not finite are left out
  bool dots = false;  // mark every point; each then shows its value when hovered over
};

struct ChartOptions {
  std::string title;
  std::string x_label = "iteration";
  int width = 640;
  int height = 260;
  bool from_zero = false;  // the y axis includes 0
};

/// An <svg> element; empty if no series has a point. Long series are thinned to the least and greatest value
/// per pixel column; the axis leaves out the highest 1 % of values where they would flatten the rest.
std::string line_chart(const ChartOptions& options, const std::vector<Series>& series);

/// &, <, >, " and ' as entities; control characters except tab and line feed as U+FFFD.
std::string escape_html(const std::string& text);

/// Mean of the exponential moving averages from the left and from the right, each with the weight 1 - 1 / span and
/// corrected for its start: a curve that does not lag. Values that are not finite are left out.
std::vector<std::pair<double, double>> smooth(const std::vector<std::pair<double, double>>& points,
                                              double span);

}  // namespace teratron
