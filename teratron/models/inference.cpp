#include "teratron/models/inference.h"

#include <ATen/ATen.h>

namespace teratron {

Inference token_inference(int64_t vocabulary) {
  const auto batch = [](const NamedTensors& inputs_BS, const std::string&) {
    const at::Tensor tokens_SB = inputs_BS["tokens"].t().contiguous();
    const at::Tensor index_S1 = at::arange(tokens_SB.size(0), tokens_SB.options()).unsqueeze(1);
    return MicroBatch{.tensors = {{"tokens", tokens_SB}, {"sequence_index", index_S1.expand_as(tokens_SB)}},
                      .training = false};
  };
  return {.inputs = {{.name = "tokens", .limit = vocabulary}}, .batch = batch};
}

}  // namespace teratron
