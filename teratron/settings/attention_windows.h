// Sliding-window attention: --window-size and --window-attn-skip-freq to a window per layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// Parses "127,0", "(127, 0)" or "[1,1,0]"; nullopt if not a list of integers.
std::optional<std::vector<int64_t>> parse_number_list(std::string_view text);

struct WindowOptions {
  std::optional<std::string> window_size;  // keys visible before and after the query; -1: all
  // N: every N-th layer has no window; or a list with 0 (no window) or 1 per layer.
  std::optional<std::string> window_attn_skip_freq;
};

bool is_valid_window_size(std::string_view text);
bool is_valid_window_pattern(std::string_view text, int64_t num_layers);

/// 1 for each layer without rotation: every N-th, "4", or those that a list names, "([0]*3+[1])*2";
/// nullopt if `text` is neither. Megatron-LM's --no-rope-freq.
std::optional<std::vector<int64_t>> parse_no_rope_layers(std::string_view text, int64_t num_layers);

/// Number of keys visible to a query per layer, including its own position; 0: all. Empty without a window.
/// The options must be valid.
std::vector<int64_t> attention_windows(const WindowOptions& options, int64_t num_layers);

}  // namespace teratron
