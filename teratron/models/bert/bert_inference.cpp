#include "teratron/models/bert/bert_inference.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// The tokens of a row are a segment, its padding another.
at::Tensor segments_of(const at::Tensor& mask_BS, const std::string& where) {
  const at::Tensor mask = mask_BS.to(at::kCPU), lengths_B = mask.sum(1);
  const int64_t rows = mask.size(0), length = mask.size(1);
  std::vector<int32_t> starts;
  for (int64_t b = 0; b < rows; ++b) {
    const int64_t tokens = lengths_B[b].item<int64_t>();
    if (tokens == 0 || mask[b].narrow(0, 0, tokens).sum().item<int64_t>() != tokens) {
      throw data_error({.what = tokens == 0 ? "a row is padding alone" : "a row has padding between tokens",
                        .where = fmt::format("{}:padding_mask", where),
                        .fix = "Write 1 for the tokens of each row, then 0 for its padding"});
    }
    starts.push_back(static_cast<int32_t>(b * length));
    if (tokens < length) starts.push_back(static_cast<int32_t>(b * length + tokens));
  }
  if (static_cast<int64_t>(starts.size()) == rows) return {};  // no padding
  starts.push_back(static_cast<int32_t>(rows * length));
  return at::tensor(starts, at::kInt).to(mask_BS.device());
}

}  // namespace

Inference bert_inference(const BertConfig& config) {
  Inference inference = token_inference(config.vocabulary);
  if (config.token_types > 0)
    inference.inputs.push_back({.name = "types", .limit = config.token_types, .fill = 0});
  inference.inputs.push_back({.name = "padding_mask", .limit = 2, .fill = 1});
  inference.batch = [tokens = inference.batch](const NamedTensors& inputs_BS, const std::string& where) {
    MicroBatch batch = tokens(inputs_BS, where);
    if (inputs_BS["types"].defined()) batch.tensors.set("types", inputs_BS["types"].t().contiguous());
    const at::Tensor segments = segments_of(inputs_BS["padding_mask"], where);
    if (segments.defined()) batch.tensors.set("cu_seqlens", segments);
    batch.tensors.set("row_lengths", inputs_BS["padding_mask"].sum(1));
    return batch;
  };
  return inference;
}

}  // namespace teratron
