#include "teratron/comm/ranks/cpu_reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr int64_t kBlock = 1024;

// Storage types whose arithmetic uses another type.
struct Bf16 {
  uint16_t bits;
};
struct Bool {
  uint8_t bits;
};

template <typename T>
struct Element {
  using Sum = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};
template <>
struct Element<Bf16> {
  using Sum = float;
  static float load(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }
  static Bf16 store(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t nearest_even = bits + 0x7FFF + ((bits >> 16) & 1);
    return {static_cast<uint16_t>(value != value ? 0x7FC0 : nearest_even >> 16)};
  }
};
template <>
struct Element<_Float16> {
  using Sum = float;
  static float load(_Float16 value) { return static_cast<float>(value); }
  static _Float16 store(float value) { return static_cast<_Float16>(value); }
};
template <>
struct Element<Bool> {
  using Sum = uint8_t;
  static uint8_t load(Bool value) { return value.bits != 0; }
  static Bool store(uint8_t value) { return {static_cast<uint8_t>(value != 0)}; }
};

template <ReduceOp op, typename Sum>
Sum combine(Sum a, Sum b) {
  if constexpr (op == ReduceOp::max) return b > a || b != b ? b : a;
  if constexpr (op == ReduceOp::min) return b < a || b != b ? b : a;
  return static_cast<Sum>(a + b);
}

template <typename T, ReduceOp op>
void reduce_as(std::span<const void* const> inputs, int64_t begin, int64_t count, void* output) {
  using E = Element<T>;
  using Sum = typename E::Sum;
  std::array<Sum, kBlock> sums;
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t n = std::min(kBlock, count - done);
    const auto source = [&](size_t rank) { return static_cast<const T*>(inputs[rank]) + begin + done; };
    const T* first = source(0);
    for (int64_t i = 0; i < n; ++i) sums[i] = E::load(first[i]);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      const T* next = source(rank);
      for (int64_t i = 0; i < n; ++i) sums[i] = combine<op>(sums[i], E::load(next[i]));
    }
    if constexpr (op == ReduceOp::avg) {
      const auto ranks = static_cast<Sum>(inputs.size());
      for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<Sum>(sums[i] / ranks);
    }
    T* target = static_cast<T*>(output) + done;
    for (int64_t i = 0; i < n; ++i) target[i] = E::store(sums[i]);
  }
}

using Reducer = void (*)(std::span<const void* const>, int64_t, int64_t, void*);

template <typename T>
constexpr Reducer kReducers[] = {reduce_as<T, ReduceOp::sum>, reduce_as<T, ReduceOp::avg>,
                                 reduce_as<T, ReduceOp::max>, reduce_as<T, ReduceOp::min>};

constexpr std::pair<Dtype, const Reducer*> kReducersOfDtype[] = {
    {Dtype::f32, kReducers<float>},    {Dtype::f64, kReducers<double>},  {Dtype::bf16, kReducers<Bf16>},
    {Dtype::f16, kReducers<_Float16>}, {Dtype::i64, kReducers<int64_t>}, {Dtype::i32, kReducers<int32_t>},
    {Dtype::u8, kReducers<uint8_t>},   {Dtype::boolean, kReducers<Bool>}};

Reducer find_reducer(Reduction reduction) {
  for (const auto& [dtype, reducers] : kReducersOfDtype) {
    if (dtype == reduction.dtype) return reducers[static_cast<size_t>(reduction.op)];
  }
  return nullptr;
}

}  // namespace

bool can_reduce(Dtype dtype) {
  return find_reducer({dtype, ReduceOp::sum}) != nullptr;
}

void reduce(Reduction reduction, std::span<const void* const> inputs, int64_t begin, int64_t count,
            void* output) {
  const Reducer reducer = find_reducer(reduction);
  TERATRON_ASSERT(reducer != nullptr, "cannot reduce {}", name_of(reduction.dtype));
  reducer(inputs, begin, count, output);
}

}  // namespace teratron
