// Tensors of a checkpoint for a reader.
#pragma once

#include <string>
#include <vector>

namespace teratron {

struct ListedTensor {
  std::string name;
  std::string kind;  // "f32   [8, 16]"
};

/// A line for each tensor; unless `all`, one for those of all layers, with their count, and none for the
/// optimizer's. Names of all layers differ in numbers between dots alone.
std::vector<std::string> tensor_lines(const std::vector<ListedTensor>& tensors, bool all);

}  // namespace teratron
