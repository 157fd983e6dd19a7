// How a cost grows.
#pragma once

#include <cmath>
#include <span>

namespace teratron {

/// The exponent k of the least-squares fit y = c x^k.
inline double fitted_exponent(std::span<const double> x, std::span<const double> y) {
  const auto n = static_cast<double>(x.size());
  double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    mean_x += std::log(x[i]) / n;
    mean_y += std::log(y[i]) / n;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const double from_mean = std::log(x[i]) - mean_x;
    xx += from_mean * from_mean;
    xy += from_mean * (std::log(y[i]) - mean_y);
  }
  return xy / xx;
}

}  // namespace teratron
