#include "teratron/models/vit/data/mock_image_dataset.h"

#include <algorithm>

#include <fmt/format.h>

#include "teratron/base/philox.h"

namespace teratron {

void MockImageDataset::get(int64_t i, const Sample& sample) const {
  const PhiloxWords random = philox({.seed = options_.seed}, static_cast<uint64_t>(i));
  const auto label = static_cast<int64_t>(random.word[0] % static_cast<uint64_t>(options_.classes));
  const double step = 2.0 / static_cast<double>(options_.classes);
  if (sample.has("pixel_values"))
    std::ranges::fill(sample.f32("pixel_values"),
                      static_cast<float>(step * (static_cast<double>(label) + 0.5) - 1.0));
  if (sample.has("labels")) sample.i64("labels")[0] = label;
}

std::string MockImageDataset::describe() const {
  return fmt::format("mock data: {} images of {} classes", size(), options_.classes);
}

}  // namespace teratron
