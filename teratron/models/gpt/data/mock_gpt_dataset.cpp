#include "teratron/models/gpt/data/mock_gpt_dataset.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "teratron/base/error.h"

namespace teratron {

namespace {

uint64_t mix(uint64_t value) {  // splitmix64
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

MockGPTDataset::MockGPTDataset(const Options& options) : options_(options) {
  TERATRON_ASSERT(options.vocab_size > 1 && options.sequence_length > 0 && options.samples >= 0);
}

void MockGPTDataset::get(int64_t i, const Sample& sample) const {
  const uint64_t random = mix(mix(options_.seed) + static_cast<uint64_t>(i));
  const auto vocab = static_cast<uint64_t>(options_.vocab_size);
  const uint64_t step = 1 + (random >> 32) % 8;
  uint64_t token = (random & 0xffffffff) % vocab;
  const std::span<int64_t> tokens = sample.i64("tokens"), labels = sample.i64("labels");
  for (size_t position = 0; position < tokens.size(); ++position) {
    tokens[position] = static_cast<int64_t>(token);
    token = (token + step) % vocab;
    labels[position] = static_cast<int64_t>(token);
  }
  if (sample.has("position_ids")) {
    const std::span<int64_t> ids = sample.i64("position_ids");
    std::iota(ids.begin(), ids.end(), 0);
  }
  std::ranges::fill(sample.f32("loss_mask"), 1.0F);
}

std::string MockGPTDataset::describe() const {
  return fmt::format("mock data: {} samples of {} tokens, vocabulary {}", size(), options_.sequence_length,
                     options_.vocab_size);
}

}  // namespace teratron
