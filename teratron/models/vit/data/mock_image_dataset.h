// Samples of --mock-data for image classifiers.
#pragma once

#include <cstdint>
#include <string>

#include "teratron/data/dataset.h"

namespace teratron {

/// Images of one brightness each, which says the class.
class MockImageDataset : public Dataset {
 public:
  struct Options {
    int64_t samples = 0;
    int64_t classes = 2;
    uint64_t seed = 1234;
  };
  explicit MockImageDataset(const Options& options) : options_(options) {}

  int64_t size() const override { return options_.samples; }
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override;

 private:
  Options options_;
};

}  // namespace teratron
