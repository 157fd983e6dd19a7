// Tensors whose rows tensor ranks cut in several segments.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace teratron {

/// The rows of each segment of a tensor of `rows` rows, by its name and the settings of its model: gates and
/// ups, or what projections and convolutions of recurrences consist of. Empty: it is cut as a whole.
std::vector<int64_t> row_segments(std::string_view name, int64_t rows, const nlohmann::json& settings);

/// Names of these segments where `torch_dist` has a tensor for each: "mixer.in_proj.weight.z". Empty: it has
/// one.
std::vector<std::string_view> segment_names(std::string_view name);

}  // namespace teratron
