// Samples of --mock-data for GPT.
#pragma once

#include <cstdint>
#include <string>

#include "teratron/data/dataset.h"

namespace teratron {

/// Synthetic samples: arithmetic progressions modulo the vocabulary size with start and step drawn from
/// (seed, i). A model learns them quickly, so a falling loss shows that training works.
class MockGPTDataset : public Dataset {
 public:
  struct Options {
    int64_t samples = 0;
    int64_t sequence_length = 0;
    int64_t vocab_size = 0;  // > 1
    uint64_t seed = 1234;
  };
  explicit MockGPTDataset(const Options& options);

  int64_t size() const override { return options_.samples; }
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override;

 private:
  Options options_;
};

}  // namespace teratron
