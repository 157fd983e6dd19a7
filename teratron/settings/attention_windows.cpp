#include "teratron/settings/attention_windows.h"

#include <algorithm>
#include <charconv>

#include "teratron/base/config/layer_pattern.h"

namespace teratron {

std::optional<std::vector<int64_t>> parse_number_list(std::string_view text) {
  const std::string_view brackets = "()[] \t";
  std::vector<int64_t> numbers;
  size_t position = 0;
  while (position <= text.size()) {
    const size_t comma = std::min(text.find(',', position), text.size());
    std::string_view word = text.substr(position, comma - position);
    word.remove_prefix(std::min(word.find_first_not_of(brackets), word.size()));
    word = word.substr(0, word.find_last_not_of(brackets) + 1);
    int64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
    numbers.push_back(number);
    position = comma + 1;
  }
  return numbers;
}

bool is_valid_window_size(std::string_view text) {
  const auto numbers = parse_number_list(text);
  return numbers && numbers->size() == 2 && numbers->at(0) >= -1 && numbers->at(1) >= -1;
}

bool is_valid_window_pattern(std::string_view text, int64_t num_layers) {
  const auto numbers = parse_number_list(text);
  if (!numbers) return false;
  if (numbers->size() == 1) return numbers->at(0) > 0;
  return static_cast<int64_t>(numbers->size()) == num_layers &&
         std::all_of(numbers->begin(), numbers->end(),
                     [](int64_t number) { return number == 0 || number == 1; });
}

std::optional<std::vector<int64_t>> parse_no_rope_layers(std::string_view text, int64_t num_layers) {
  const auto numbers = parse_number_list(text);
  if (!numbers || numbers->size() != 1 || text.find('[') != text.npos)
    return parse_layer_pattern(text, num_layers);
  if (numbers->at(0) < 1) return std::nullopt;
  std::vector<int64_t> layers(static_cast<size_t>(num_layers), 0);
  for (size_t layer = 0; layer < layers.size(); ++layer)
    layers[layer] = static_cast<int64_t>(layer + 1) % numbers->at(0) == 0;
  return layers;
}

std::vector<int64_t> attention_windows(const WindowOptions& options, int64_t num_layers) {
  if (!options.window_size) return {};
  const int64_t before = parse_number_list(*options.window_size).value().at(0);
  std::vector<int64_t> windows(static_cast<size_t>(num_layers), before < 0 ? 0 : before + 1);
  if (!options.window_attn_skip_freq) return windows;
  const std::vector<int64_t> skip = parse_number_list(*options.window_attn_skip_freq).value();
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    const bool windowed =
        skip.size() == 1 ? static_cast<int64_t>(layer + 1) % skip[0] != 0 : skip.at(layer) != 0;
    if (!windowed) windows[layer] = 0;
  }
  return windows;
}

}  // namespace teratron
