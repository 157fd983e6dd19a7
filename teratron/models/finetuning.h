// Finetuning a model from the weights of another family.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// What --finetune accepts of a checkpoint of another family. Names of weights are given by their beginnings.
struct Finetuning {
  std::string family = {};                    // "": none
  std::vector<std::string> starts_anew = {};  // weights that it need not hold: they keep their initial values
  std::vector<std::string> left_out = {};     // its weights that this model has not
};

/// How the names of heads that a finetuning adds begin.
inline constexpr std::array<std::string_view, 2> added_heads = {"classification_head", "multichoice_head"};

}  // namespace teratron
