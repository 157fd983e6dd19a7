// Access to the generated tables; for unicode*.cpp only. The layout of each is told in unicode_tables.inc.
#pragma once

#include <cstdint>
#include <span>

namespace teratron::unicode_tables {

std::span<const uint32_t> flag_ranges();
std::span<const uint32_t> combining_classes();
std::span<const uint32_t> decompositions();
std::span<const uint32_t> compositions();
std::span<const uint32_t> lower();
std::span<const uint32_t> python_lower_difference();
std::span<const uint32_t> python_decomposition_difference();

}  // namespace teratron::unicode_tables
