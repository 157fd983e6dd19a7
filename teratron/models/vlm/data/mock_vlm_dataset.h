// Samples of --mock-data for models that read images.
#pragma once

#include <cstdint>
#include <string>

#include "teratron/data/dataset.h"
#include "teratron/models/vlm/data/vlm_schema.h"

namespace teratron {

/// As Megatron-LM's: an image, then the text of MockGPTDataset, without a loss at the rows of the image but
/// the last. The larger the first token, the more of the image is bright, so that a model can learn to read
/// it.
class MockVlmDataset : public Dataset {
 public:
  struct Options {
    int64_t samples = 0;
    int64_t sequence_length = 0;  // rows of the image included
    int64_t vocab_size = 0;       // > 1
    uint64_t seed = 1234;
    int64_t image_token = -200;
    ImageSizes sizes = {};
  };
  explicit MockVlmDataset(const Options& options);

  int64_t size() const override { return options_.samples; }
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override;

 private:
  Options options_;
};

}  // namespace teratron
