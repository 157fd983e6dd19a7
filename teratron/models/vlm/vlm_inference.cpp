#include "teratron/models/vlm/vlm_inference.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/models/image_tokens.h"

namespace teratron {

namespace {

// Padding after a sequence's tokens, which attention never sees.
void check_mask(const at::Tensor& mask_BS, const std::string& where) {
  const at::Tensor later_BS = mask_BS.narrow(1, 1, mask_BS.size(1) - 1);
  const at::Tensor rises_BS = later_BS.gt(mask_BS.narrow(1, 0, later_BS.size(1)));
  const at::Tensor wrong = rises_BS.nonzero();
  if (wrong.size(0) == 0) return;
  throw data_error({.what = fmt::format("row {} has padding before tokens", wrong[0][0].item<int64_t>()),
                    .where = where + ":attention_mask",
                    .fix = "Write 1 for the tokens of each row, then 0 for its padding"});
}

// Images of each sequence.
std::vector<int64_t> images_of(const NamedTensors& inputs, const ImageTokens& image,
                               const std::string& where) {
  const at::Tensor count_B = inputs["tokens"].eq(image.token).sum(1).contiguous();
  const at::Tensor& pixels = inputs["pixel_values"];
  const int64_t images = pixels.defined() ? pixels.size(0) : 0, total = count_B.sum().item<int64_t>();
  if (total != images * image.rows) {
    throw data_error(
        {.what = fmt::format("tokens has {} image tokens ({}), but pixel_values has {} images of "
                             "{} rows, which need {}",
                             total, image.token, images, image.rows, images * image.rows),
         .where = where,
         .fix = "Write one image token for each row of each image"});
  }
  std::vector<int64_t> counts;
  for (int64_t row = 0; row < count_B.size(0); ++row) {
    const int64_t count = count_B[row].item<int64_t>();
    if (count % image.rows != 0) {
      throw data_error({.what = fmt::format("row {} has {} image tokens, but an image has {} rows", row,
                                            count, image.rows),
                        .where = where + ":tokens",
                        .fix = "Keep the rows of an image together"});
    }
    counts.push_back(count / image.rows);
  }
  return counts;
}

std::vector<NamedTensors> divide(const NamedTensors& inputs, int64_t sequences, const ImageTokens& image,
                                 const std::string& where) {
  check_mask(inputs["attention_mask"], where);
  const std::vector<int64_t> images = images_of(inputs, image, where);
  std::vector<NamedTensors> parts;
  int64_t first = 0;  // image of the part
  for (int64_t row = 0; row < std::ssize(images); row += sequences) {
    const int64_t rows = std::min(sequences, std::ssize(images) - row);
    int64_t count = 0;
    for (int64_t i = row; i < row + rows; ++i) count += images[static_cast<size_t>(i)];
    NamedTensors& part = parts.emplace_back();
    part.set("tokens", inputs["tokens"].narrow(0, row, rows));
    if (count > 0) part.set("pixel_values", inputs["pixel_values"].narrow(0, first, count));
    first += count;
  }
  return parts;
}

MicroBatch batch_of(const NamedTensors& inputs, const ImageTokens& image) {
  const at::Tensor tokens_SB = inputs["tokens"].t().contiguous();
  const at::Tensor is_image_SB = tokens_SB.eq(image.token);
  const at::Tensor index_S1 = at::arange(tokens_SB.size(0), tokens_SB.options()).unsqueeze(1);
  const at::Tensor number_SB = is_image_SB.to(at::kLong).cumsum(0) - 1;
  MicroBatch batch{.tensors = {{"tokens", tokens_SB},
                               {"sequence_index", index_S1.expand_as(tokens_SB)},
                               {"image_rows", at::where(is_image_SB, number_SB, -at::ones_like(number_SB))},
                               {"images", is_image_SB.sum(0).div(image.rows, "floor").unsqueeze(1)}},
                   .training = false};
  if (inputs["pixel_values"].defined()) batch.tensors.set("pixel_values", inputs["pixel_values"]);
  return batch;
}

}  // namespace

Inference vlm_inference(const VlmConfig& config) {
  const ImageTokens image{.token = config.image_token, .rows = config.vision.rows()};
  const VisionConfig& vision = config.vision;
  return {.inputs = {{.name = "tokens", .limit = config.language.vocabulary, .besides = config.image_token},
                     {.name = "attention_mask", .limit = 2, .fill = 1},
                     {.name = "pixel_values", .item = {vision.channels, vision.height, vision.width}}},
          .batch = [image](const NamedTensors& inputs,
                           const std::string& /*where*/) { return batch_of(inputs, image); },
          .divide = [image](const NamedTensors& inputs, int64_t sequences,
                            const std::string& where) { return divide(inputs, sequences, image, where); }};
}

}  // namespace teratron
