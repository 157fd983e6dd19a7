#include "teratron/nn/moe/random.h"

#include <array>

#include <ATen/ATen.h>

namespace teratron {

namespace {

constexpr int64_t low_word = 0xFFFFFFFF;

struct Product {
  at::Tensor high, low;
};
// Philox's 32 x 32 -> 64-bit product, on i64 tensors; signed overflow does not change the two halves.
Product multiply(const at::Tensor& x, int64_t factor) {
  const at::Tensor product = x * factor;
  return {at::bitwise_right_shift(product, 32).bitwise_and_(low_word), at::bitwise_and(product, low_word)};
}

int64_t word(uint64_t value) {
  return static_cast<int64_t>(value & uint64_t{0xFFFFFFFF});
}

// philox() of base/philox.h for a tensor of blocks.
std::array<at::Tensor, 4> philox_words(const RandomKey& key, const at::Tensor& block) {
  uint64_t k0 = key.seed & uint64_t{0xFFFFFFFF}, k1 = key.seed >> 32;
  at::Tensor c0 = at::bitwise_and(block, low_word), c1 = at::bitwise_right_shift(block, 32);
  at::Tensor c2 = at::full_like(block, word(key.tensor)), c3 = at::full_like(block, word(key.tensor >> 32));
  for (int round = 0; round < 10; ++round) {
    const Product p0 = multiply(c0, 0xD2511F53), p1 = multiply(c2, 0xCD9E8D57);
    c0 = at::bitwise_xor(p1.high, c1).bitwise_xor_(word(k0));
    c2 = at::bitwise_xor(p0.high, c3).bitwise_xor_(word(k1));
    c1 = p1.low;
    c3 = p0.low;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {c0, c1, c2, c3};
}

}  // namespace

at::Tensor uniform_rows(const RandomKey& key, const at::Tensor& rows_R, int64_t columns) {
  const int64_t blocks = (columns + 3) / 4;
  const at::Tensor block = rows_R.unsqueeze(1) * blocks + at::arange(blocks, rows_R.options());
  const std::array<at::Tensor, 4> words = philox_words(key, block);
  const at::Tensor all = at::stack({words[0], words[1], words[2], words[3]}, 2).flatten(1);
  // As uniform_from(): the sum is exact in f64 and rounded once.
  return all.narrow(1, 0, columns).to(at::kDouble).add_(0.5).mul_(0x1p-32).to(at::kFloat);
}

}  // namespace teratron
