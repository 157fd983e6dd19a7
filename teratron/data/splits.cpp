#include "teratron/data/splits.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "teratron/base/error.h"

namespace teratron {

namespace {

UserError bad_split(std::string_view split, std::string what) {
  return config_error({.what = fmt::format("\"{}\" {}", printable(split), what),
                       .where = "--split",
                       .fix = "Use up to three shares, for example 969,30,1"});
}

}  // namespace

std::array<double, 3> parse_split(std::string_view split) {
  std::array<double, 3> shares = {};
  size_t count = 0;
  constexpr std::string_view kNumber = ".0123456789";
  for (size_t start = split.find_first_of(kNumber); start != std::string_view::npos;) {
    const size_t end = std::min(split.find_first_not_of(kNumber, start), split.size());
    const std::string text(split.substr(start, end - start));
    char* parsed = nullptr;
    const double value = std::strtod(text.c_str(), &parsed);
    if (parsed != text.c_str() + text.size()) throw bad_split(split, "has the invalid number " + text);
    if (count == shares.size()) throw bad_split(split, "has more than three shares");
    shares[count++] = value;
    start = split.find_first_of(kNumber, end);
  }
  const double sum = shares[0] + shares[1] + shares[2];
  if (!(sum > 0) || !std::isfinite(sum)) throw bad_split(split, "has no share above zero");
  for (double& share : shares) share /= sum;
  return shares;
}

std::array<std::optional<SequenceRange>, 3> split_ranges(const std::array<double, 3>& shares,
                                                         int64_t sequences) {
  std::array<std::optional<SequenceRange>, 3> ranges;
  double fraction = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double start = fraction;
    fraction += shares[i];
    if (shares[i] == 0) continue;
    const auto bound = [&](double value) {
      return std::min(static_cast<int64_t>(std::nearbyint(value * static_cast<double>(sequences))),
                      sequences);
    };
    ranges[i] = SequenceRange{bound(start), bound(fraction)};
  }
  return ranges;
}

}  // namespace teratron
