#include "teratron/tokenizer/unicode/unicode_tables.h"

namespace teratron::unicode_tables {
namespace {
#include "teratron/tokenizer/unicode/unicode_tables.inc"
}  // namespace

const std::span<const uint32_t> flag_ranges = kFlagRanges;
const std::span<const uint32_t> combining_classes = kCombiningClasses;
const std::span<const uint32_t> decompositions = kDecompositions;
const std::span<const uint32_t> compositions = kCompositions;
const std::span<const uint32_t> lower = kLower;
const std::span<const uint32_t> python_lower_difference = kPythonLowerDifference;
const std::span<const uint32_t> python_decomposition_difference = kPythonDecompositionDifference;

}  // namespace teratron::unicode_tables
