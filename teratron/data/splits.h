// --split: shares of train, valid and test.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace teratron {

/// Sequences, or documents, [first, last).
struct SequenceRange {
  int64_t first = 0;
  int64_t last = 0;
  int64_t size() const { return last - first; }
};

/// Shares of train, valid and test from a --split string: its numbers, padded with zeros to three and
/// normalized. Throws UserError(config) for more than three, none above zero or invalid numbers.
std::array<double, 3> parse_split(std::string_view split);

/// Sequences of each split; bounds are fraction x sequences, rounded half to even. Nothing for a share of 0.
std::array<std::optional<SequenceRange>, 3> split_ranges(const std::array<double, 3>& shares,
                                                         int64_t sequences);

}  // namespace teratron
