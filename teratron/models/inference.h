// What a model takes and gives outside training: tensors by name (`teratron logits`).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "teratron/models/model.h"

namespace teratron {

struct Inference {
  /// i64 [B, S], with values in [0, limit); or f32 [N, item...], of any number of items.
  struct Input {
    std::string name;
    int64_t limit = 0;
    std::optional<int64_t> fill = {};  // the values of a tensor that is left out; nullopt: it is required
    /// Tensors of one sequence have the same S; all have the same B.
    std::string sequence = "tokens";
    std::optional<int64_t> besides = {};  // a value that is allowed besides
    std::vector<int64_t> item = {};       // not empty: items of this shape; none if they are left out
  };
  std::vector<Input> inputs;
  bool of_texts = false;  // the outputs are of whole texts, [B, ...], not of each token
  /// The micro-batch of all inputs, on their device. UserError(data) at `where` for inputs that contradict
  /// each other.
  std::function<MicroBatch(const NamedTensors& inputs_BS, const std::string& where)> batch;
  /// Divides the inputs, on the CPU, into some of so many sequences each, with the items that are theirs.
  /// UserError(data) at `where`. Null: for a model without items.
  std::function<std::vector<NamedTensors>(const NamedTensors& inputs, int64_t sequences,
                                          const std::string& where)>
      divide = nullptr;
};

/// A language model takes tokens, at positions 0, 1, ....
Inference token_inference(int64_t vocabulary);

}  // namespace teratron
