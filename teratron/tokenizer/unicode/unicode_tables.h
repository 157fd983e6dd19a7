// The generated tables; for unicode*.cpp only. Their layout is described in unicode_tables.inc.
#pragma once

#include <cstdint>
#include <span>

namespace teratron::unicode_tables {

extern const std::span<const uint32_t> flag_ranges, combining_classes, decompositions, compositions, lower,
    python_lower_difference, python_decomposition_difference;

}  // namespace teratron::unicode_tables
