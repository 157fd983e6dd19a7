#include "teratron/models/t5/t5_inference.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// Lengths of rows that begin with their tokens and end with their padding.
at::Tensor lengths_of(const at::Tensor& mask_BS, const std::string& where) {
  const at::Tensor mask = mask_BS.to(at::kCPU), lengths_B = mask.sum(1);
  const at::Tensor expected =
      at::arange(mask.size(1)).unsqueeze(0).lt(lengths_B.unsqueeze(1)).to(mask.scalar_type());
  for (int64_t row = 0; row < mask.size(0); ++row) {
    const bool empty = lengths_B[row].item<int64_t>() == 0;
    if (!empty && at::equal(mask[row], expected[row])) continue;
    throw data_error(
        {.what = fmt::format("row {} {}", row, empty ? "is padding alone" : "has padding between tokens"),
         .where = where,
         .fix = "Write 1 for the tokens of each row, then 0 for its padding"});
  }
  return lengths_B.unsqueeze(1).to(mask_BS.device());
}

at::Tensor index_of(const at::Tensor& tokens_BS) {
  return at::arange(tokens_BS.size(1), tokens_BS.options())
      .unsqueeze(1)
      .expand({tokens_BS.size(1), tokens_BS.size(0)});
}

}  // namespace

Inference t5_inference(const T5Config& config) {
  const auto tokens = [&](const char* name, const char* sequence) {
    return Inference::Input{.name = name, .limit = config.vocabulary, .sequence = sequence};
  };
  const auto mask = [](const char* name, const char* sequence) {
    return Inference::Input{.name = name, .limit = 2, .fill = 1, .sequence = sequence};
  };
  return {
      .inputs = {tokens("encoder_tokens", "encoder"), tokens("decoder_tokens", "decoder"),
                 mask("encoder_mask", "encoder"), mask("decoder_mask", "decoder")},
      .batch = [](const NamedTensors& inputs_BS, const std::string& where) {
        const at::Tensor &source_BS = inputs_BS["encoder_tokens"], &target_BS = inputs_BS["decoder_tokens"];
        lengths_of(inputs_BS["decoder_mask"], where + ":decoder_mask");  // causal: needs no mask
        return MicroBatch{
            .tensors = {{"encoder_tokens", source_BS.t().contiguous()},
                        {"encoder_index", index_of(source_BS)},
                        {"encoder_length", lengths_of(inputs_BS["encoder_mask"], where + ":encoder_mask")},
                        {"decoder_tokens", target_BS.t().contiguous()},
                        {"decoder_index", index_of(target_BS)}},
            .training = false};
      }};
}

}  // namespace teratron
