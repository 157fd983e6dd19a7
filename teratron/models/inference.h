// What a model takes and gives outside training: tensors by name (`teratron logits`).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "teratron/models/model.h"

namespace teratron {

struct Inference {
  /// i64 [B, S], with values in [0, limit).
  struct Input {
    std::string name;
    int64_t limit = 0;
    std::optional<int64_t> fill = {};  // the values of a tensor that is left out; nullopt: it is required
    /// Tensors of one sequence have the same S; all have the same B.
    std::string sequence = "tokens";
  };
  std::vector<Input> inputs;
  bool of_texts = false;  // the outputs are of whole texts, [B, ...], not of each token
  /// The micro-batch of all inputs, on their device. UserError(data) at `where` for inputs that contradict
  /// each other.
  std::function<MicroBatch(const NamedTensors& inputs_BS, const std::string& where)> batch;
};

/// A language model takes tokens, at positions 0, 1, ....
Inference token_inference(int64_t vocabulary);

}  // namespace teratron
