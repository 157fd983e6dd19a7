// Rows of the images in prompts: each image goes through the vision tower once, also if several requests have
// it or its prompt is read in several steps.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "teratron/generate/request.h"
#include "teratron/generate/step.h"
#include "teratron/models/model.h"

namespace teratron {

class ImageRows {
 public:
  static constexpr size_t most_images = 64;  // that are kept, or as many as a request has

  struct Target {
    Model& model;  // the first stage
    const std::string& column;
    const ImageTokens& tokens;
  };
  /// Puts the rows of the step's images into the place of their tokens' word embeddings. Without gradients.
  /// Collective over the tensor-parallel ranks.
  void insert(const StepInput& step, const Target& target, MicroBatch& batch);

 private:
  /// [count * rows, H] on the model's device.
  at::Tensor rows_of(const RequestImages& images, const Target& target);

  using Entry = std::pair<std::string, at::Tensor>;  // a hash of the pixel values, rows

  std::list<Entry> used_;  // the last one used first
  std::map<std::string, std::list<Entry>::iterator> by_hash_;
};

}  // namespace teratron
