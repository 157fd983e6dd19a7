#include "teratron/tokenizer/unicode/unicode_tables.h"

namespace teratron::unicode_tables {
namespace {
#include "teratron/tokenizer/unicode/unicode_tables.inc"
}  // namespace

std::span<const uint32_t> flag_ranges() {
  return kFlagRanges;
}
std::span<const uint32_t> combining_classes() {
  return kCombiningClasses;
}
std::span<const uint32_t> decompositions() {
  return kDecompositions;
}
std::span<const uint32_t> compositions() {
  return kCompositions;
}
std::span<const uint32_t> lower() {
  return kLower;
}
std::span<const uint32_t> python_lower_difference() {
  return kPythonLowerDifference;
}
std::span<const uint32_t> python_decomposition_difference() {
  return kPythonDecompositionDifference;
}

}  // namespace teratron::unicode_tables
