// Conversion between c10::ScalarType and Dtype. For code that links torch; base itself does not.
#pragma once

#include <array>
#include <optional>
#include <utility>

#include <c10/core/ScalarType.h>

#include "teratron/base/dtype.h"

namespace teratron {

inline constexpr std::array<std::pair<c10::ScalarType, Dtype>, 10> tensor_dtypes = {
    {{c10::kFloat, Dtype::f32},
     {c10::kDouble, Dtype::f64},
     {c10::kBFloat16, Dtype::bf16},
     {c10::kHalf, Dtype::f16},
     {c10::kLong, Dtype::i64},
     {c10::kInt, Dtype::i32},
     {c10::kShort, Dtype::i16},
     {c10::kByte, Dtype::u8},
     {c10::kChar, Dtype::i8},
     {c10::kBool, Dtype::boolean}}};

/// Nullopt if no Dtype matches.
constexpr std::optional<Dtype> dtype_of(c10::ScalarType type) {
  for (const auto& [scalar, dtype] : tensor_dtypes) {
    if (scalar == type) return dtype;
  }
  return std::nullopt;
}

/// In messages: as flags spell precisions, integers as PyTorch does.
inline const char* spelling_of(c10::ScalarType type) {
  constexpr std::array<std::pair<c10::ScalarType, const char*>, 8> names = {{{c10::kFloat, "fp32"},
                                                                             {c10::kDouble, "fp64"},
                                                                             {c10::kBFloat16, "bf16"},
                                                                             {c10::kHalf, "fp16"},
                                                                             {c10::kLong, "int64"},
                                                                             {c10::kInt, "int32"},
                                                                             {c10::kByte, "uint8"},
                                                                             {c10::kBool, "bool"}}};
  for (const auto& [scalar, name] : names) {
    if (scalar == type) return name;
  }
  return c10::toString(type);
}

/// Nullopt if tensors do not support the type.
constexpr std::optional<c10::ScalarType> scalar_type_of(Dtype dtype) {
  for (const auto& [scalar, known] : tensor_dtypes) {
    if (known == dtype) return scalar;
  }
  return std::nullopt;
}

}  // namespace teratron
