#include "teratron/hf/quantized/mxfp4.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>

namespace teratron {

namespace {

constexpr std::string_view mxfp4_blocks_end = "_blocks", mxfp4_scales_end = "_scales";
constexpr int64_t mxfp4_block = 32, mxfp4_bytes = 16;
constexpr std::array<float, 8> mxfp4_magnitudes = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

// The upper half of the f32: numbers of 3 bits have no other bits.
uint16_t bf16_of(int nibble, int scale) {
  const float magnitude = std::ldexp(mxfp4_magnitudes[static_cast<size_t>(nibble & 7)], scale - 127);
  const auto bits = std::bit_cast<uint32_t>((nibble & 8) != 0 ? -magnitude : magnitude);
  return static_cast<uint16_t>(bits >> 16);
}

// All experts of a pair. The last one that was read is kept, since its parts are read one after another.
class Mxfp4Weights final : public WeightFile {
 public:
  struct Pair {
    std::string blocks, scales;
    std::vector<std::string> parts;  // one of each expert
    int64_t out = 0, in = 0;
  };
  Mxfp4Weights(const WeightFiles& files, Pair pair) : files_(files), pair_(std::move(pair)) {}

  std::map<std::string, TensorInfo> tensors() const override {
    std::map<std::string, TensorInfo> all;
    for (const std::string& part : pair_.parts) all[part] = {Dtype::bf16, {pair_.in, pair_.out}};
    return all;
  }

  void read(const std::string& name, int64_t begin, int64_t bytes, void* out) const override {
    const std::lock_guard lock(mutex_);
    const int64_t expert = std::ranges::find(pair_.parts, name) - pair_.parts.begin();
    if (expert != expert_) decode(expert);
    std::memcpy(out, reinterpret_cast<const char*>(values_.data()) + begin, static_cast<size_t>(bytes));
  }

 private:
  void decode(int64_t expert) const {
    const int64_t count = pair_.out * pair_.in / mxfp4_block;
    std::vector<uint8_t> blocks(static_cast<size_t>(count * mxfp4_bytes)), scales(static_cast<size_t>(count));
    files_.read(pair_.blocks, expert * count * mxfp4_bytes, count * mxfp4_bytes, blocks.data());
    files_.read(pair_.scales, expert * count, count, scales.data());
    values_.resize(static_cast<size_t>(pair_.out * pair_.in));
    for (int64_t i = 0; i < pair_.out * pair_.in / 2; ++i) {
      const int64_t row = 2 * i / pair_.in, column = 2 * i % pair_.in;
      const int byte = blocks[static_cast<size_t>(i)],
                scale = scales[static_cast<size_t>(2 * i / mxfp4_block)];
      values_[static_cast<size_t>(column * pair_.out + row)] = bf16_of(byte & 15, scale);
      values_[static_cast<size_t>((column + 1) * pair_.out + row)] = bf16_of(byte >> 4, scale);
    }
    expert_ = expert;
  }

  const WeightFiles& files_;
  Pair pair_;
  mutable std::mutex mutex_;
  mutable int64_t expert_ = -1;
  mutable std::vector<uint16_t> values_;
};

bool fits_mxfp4(const TensorInfo& blocks, const TensorInfo& scales) {
  const std::vector<int64_t>& shape = blocks.shape;
  return blocks.dtype == Dtype::u8 && scales.dtype == Dtype::u8 && shape.size() == 4 &&
         shape[3] == mxfp4_bytes && scales.shape == std::vector<int64_t>(shape.begin(), shape.end() - 1);
}

}  // namespace

void read_mxfp4(WeightFiles& files, const std::function<std::string(const std::string&, int64_t)>& part_of) {
  const std::map<std::string, TensorInfo> all = files.tensors();
  for (const auto& [name, info] : all) {
    if (!name.ends_with(mxfp4_blocks_end)) continue;
    const std::string whole = name.substr(0, name.size() - mxfp4_blocks_end.size());
    const auto scales = all.find(whole + std::string(mxfp4_scales_end));
    if (scales == all.end() || !fits_mxfp4(info, scales->second)) continue;
    Mxfp4Weights::Pair pair{name, scales->first, {}, info.shape[1], info.shape[2] * mxfp4_block};
    for (int64_t expert = 0; expert < info.shape[0]; ++expert) pair.parts.push_back(part_of(whole, expert));
    files.replace({name, scales->first}, std::make_unique<Mxfp4Weights>(files, std::move(pair)));
  }
}

}  // namespace teratron
