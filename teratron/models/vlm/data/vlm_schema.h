// Samples with images: the columns of GPT, and those of the images.
#pragma once

#include <cstdint>
#include <span>

#include "teratron/data/batch.h"
#include "teratron/models/gpt/data/gpt_dataset.h"

namespace teratron {

struct ImageSizes {
  int64_t channels = 3, height = 0, width = 0;
  int64_t rows = 0;  // tokens that an image has in the sequence
};

/// Columns of rows of `sequence_length` tokens (models/vlm/vlm.h): tokens, labels, loss_mask, image_rows,
/// images and pixel_values.
BatchSchema vlm_schema(int64_t sequence_length, const ImageSizes& sizes, const GPTMaskOptions& masks = {});

/// The number of each token's row among those of the sample's images, -1 for other tokens: all `image_token`
/// one after another. Returns how many there are.
int64_t number_image_rows(std::span<const int64_t> tokens, int64_t image_token, std::span<int64_t> rows);

}  // namespace teratron
