// Element types of files and tensors; independent of torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace teratron {

enum class Dtype : uint8_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  u64,
  i64,
  f8_e4m3,
  f8_e5m2,
  bf16,
  f16,
  f32,
  f64,
  boolean
};

/// Bytes per element.
int64_t size_of(Dtype dtype);
/// safetensors' spelling: "F32", "BF16", "I64", "F8_E4M3", "BOOL"...
std::string_view name_of(Dtype dtype);
/// Inverse of name_of(); nullopt for an unknown name.
std::optional<Dtype> dtype_from_name(std::string_view name);

}  // namespace teratron
