// Which keys each layer's queries see, as --window-size and --window-attn-skip-freq say it in flags and saved
// settings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// "127,0", "(127, 0)" or "[1,1,0]" as numbers; nothing when it is no list of integers.
std::optional<std::vector<int64_t>> parse_number_list(std::string_view text);

struct WindowSettings {
  std::optional<std::string> window_size;  // keys before and behind the query; -1: all
  std::optional<std::string>
      window_attn_skip_freq;  // every N-th layer sees all, or 0 or 1 (window) per layer
};

/// Whether these are well-formed for so many layers.
bool is_window_size(std::string_view text);
bool is_window_pattern(std::string_view text, int64_t layers);

/// Per layer the number of keys that a query sees, its own place included; 0: all. Empty without a window. The
/// settings must be well-formed.
std::vector<int64_t> attention_windows(const WindowSettings& settings, int64_t layers);

}  // namespace teratron
