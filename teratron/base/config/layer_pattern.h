// Which layers of a stack are of a kind: "2" (every second from the first on), "[1,0,1]", or Megatron-LM's
// Python expressions of lists, "([0]*1+[1]*26)".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// 0 or 1 per layer; nullopt if `text` is neither a number above 0 nor a list of `layers` zeros and ones.
std::optional<std::vector<int64_t>> parse_layer_pattern(std::string_view text, int64_t layers);
/// "4" is all but every fourth, or a list as above.
std::optional<std::vector<int64_t>> parse_all_but_every(std::string_view text, int64_t layers);
/// The one spelling of a pattern in settings: "1" for all layers, else a list.
std::string to_layer_pattern(const std::vector<int64_t>& layers);

}  // namespace teratron
