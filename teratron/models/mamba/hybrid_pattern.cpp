#include "teratron/models/mamba/hybrid_pattern.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace teratron {

namespace {

// Letters of Megatron-LM whose layers do not exist here.
constexpr std::pair<char, std::string_view> planned[] = {
    {'D', "sparse attention"}, {'+', "multi-head latent attention"}, {'/', "multi-token prediction"}};

Problem problem_of(char letter) {
  const auto found = std::ranges::find(planned, letter, [](const auto& row) { return row.first; });
  if (found != std::end(planned))
    return {.what = fmt::format("'{}' in the pattern, {}, is not implemented", letter, found->second),
            .fix = "Use M, G, *, H, -, E and |"};
  return {
      .what = fmt::format("'{}' in the pattern is not a kind of layer", printable(std::string(1, letter))),
      .fix =
          "Use M (Mamba-2), G (gated delta net), * (attention), H (Mamba-2 beside attention), - (MLP), "
          "E (experts), and | between pipeline stages"};
}

// Python's round(): halves to even.
int64_t rounded(double value) {
  return std::llrint(value);
}

// Every so often, after `gap` Mamba layers, one becomes of this kind.
void spread(std::string& layers, char kind, double gap) {
  double left = gap;
  for (char& layer : layers) {
    if (layer != hybrid::mamba) continue;
    if (left < 0.5) {
      layer = kind;
      left += gap;
    } else {
      left -= 1.0;
    }
  }
}

}  // namespace

HybridPattern parse_hybrid_pattern(std::string_view text) {
  HybridPattern pattern;
  int64_t in_segment = 0;
  for (const char letter : text) {
    if (letter == '|') {
      pattern.segments.push_back(in_segment);
      in_segment = 0;
      continue;
    }
    if (std::string_view("MG*H-E").find(letter) == std::string_view::npos) {
      pattern.problems = {problem_of(letter)};
      return pattern;
    }
    pattern.layers += letter;
    ++in_segment;
  }
  if (!pattern.segments.empty()) pattern.segments.push_back(in_segment);
  if (pattern.layers.empty())
    pattern.problems = {{.what = "the pattern has no layers", .fix = "Give a letter for each, such as M-M*"}};
  return pattern;
}

bool has_attention(std::string_view layers) {
  return layers.find_first_of(std::string{hybrid::attention, hybrid::both}) != layers.npos;
}

bool has_mamba(std::string_view layers) {
  return layers.find_first_of(std::string{hybrid::mamba, hybrid::both}) != layers.npos;
}

int64_t HybridRatios::attention_layers(int64_t layers) const {
  return rounded(static_cast<double>(layers) * attention);
}

int64_t HybridRatios::mlp_layers(int64_t layers) const {
  return rounded(static_cast<double>(layers) * mlp);
}

std::string hybrid_layers(int64_t layers, const HybridRatios& ratios) {
  const int64_t attention = ratios.attention_layers(layers), mlp = ratios.mlp_layers(layers);
  std::string text(static_cast<size_t>(layers), hybrid::mamba);
  const auto mamba = static_cast<double>(layers - attention);
  spread(text, hybrid::attention, mamba / static_cast<double>(attention + 1));
  const auto replaced = static_cast<double>(mlp);
  if (mlp > 0) spread(text, hybrid::mlp, (mamba - replaced) / replaced);
  return text;
}

}  // namespace teratron
