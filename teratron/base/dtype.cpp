#include "teratron/base/dtype.h"

#include <array>

namespace teratron {

namespace {

struct Entry {
  Dtype dtype;
  std::string_view name;
  int64_t bytes;
};

constexpr std::array<Entry, 15> entries = {{{Dtype::u8, "U8", 1},
                                            {Dtype::i8, "I8", 1},
                                            {Dtype::u16, "U16", 2},
                                            {Dtype::i16, "I16", 2},
                                            {Dtype::u32, "U32", 4},
                                            {Dtype::i32, "I32", 4},
                                            {Dtype::u64, "U64", 8},
                                            {Dtype::i64, "I64", 8},
                                            {Dtype::f8_e4m3, "F8_E4M3", 1},
                                            {Dtype::f8_e5m2, "F8_E5M2", 1},
                                            {Dtype::bf16, "BF16", 2},
                                            {Dtype::f16, "F16", 2},
                                            {Dtype::f32, "F32", 4},
                                            {Dtype::f64, "F64", 8},
                                            {Dtype::boolean, "BOOL", 1}}};

}  // namespace

int64_t size_of(Dtype dtype) {
  return entries[static_cast<size_t>(dtype)].bytes;
}

std::string_view name_of(Dtype dtype) {
  return entries[static_cast<size_t>(dtype)].name;
}

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (const Entry& entry : entries) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace teratron
