#include "teratron/models/vlm/data/mock_vlm_dataset.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/models/gpt/data/mock_gpt_dataset.h"

namespace teratron {

MockVlmDataset::MockVlmDataset(const Options& options) : options_(options) {
  TERATRON_ASSERT(options.sequence_length > options.sizes.rows, "no room for text");
}

void MockVlmDataset::get(int64_t i, const Sample& sample) const {
  const int64_t height = options_.sizes.height, width = options_.sizes.width, rows = options_.sizes.rows;
  const MockGPTDataset text({.samples = options_.samples,
                             .sequence_length = options_.sequence_length,
                             .vocab_size = options_.vocab_size,
                             .seed = options_.seed});
  text.get(i, sample);
  const std::span<int64_t> tokens = sample.i64("tokens"), labels = sample.i64("labels");
  const double share =
      static_cast<double>(tokens[static_cast<size_t>(rows)] + 1) / static_cast<double>(options_.vocab_size);
  const auto bright = static_cast<int64_t>(share * static_cast<double>(height * width));
  std::ranges::fill(tokens.first(static_cast<size_t>(rows)), options_.image_token);
  // The last row predicts the first token, the others nothing.
  const auto unlearned = static_cast<size_t>(rows - 1);
  std::ranges::fill(labels.first(unlearned), 0);
  std::ranges::fill(sample.f32("loss_mask").first(unlearned), 0.0F);
  if (!sample.has("image_rows")) return;
  number_image_rows(tokens, options_.image_token, sample.i64("image_rows"));
  sample.i64("images")[0] = 1;
  const std::span<float> pixels = sample.f32_items("pixel_values", 1);
  for (int64_t k = 0; k < std::ssize(pixels); ++k) {
    pixels[static_cast<size_t>(k)] = k % (height * width) < bright ? 1.0F : -1.0F;
  }
}

std::string MockVlmDataset::describe() const {
  return fmt::format("mock data: {} samples of {} tokens, {} of them an image of {} x {}, vocabulary {}",
                     size(), options_.sequence_length, options_.sizes.rows, options_.sizes.width,
                     options_.sizes.height, options_.vocab_size);
}

}  // namespace teratron
