// The classes and functions that a pickle may name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "teratron/base/dtype.h"

namespace teratron {

/// What a call of it, or a new object of it, becomes.
enum class PickleGlobal : uint8_t {
  refused,
  dict,       // OrderedDict, Namespace
  tuple,      // torch.Size
  set,        // a list
  bytes,      // _codecs.encode
  tensor,     // torch._utils._rebuild_tensor_v2 and its predecessor
  parameter,  // torch._utils._rebuild_parameter: its first argument
  storage,    // torch.FloatStorage...: only named
  member,     // getattr, for members of enums alone: an object that keeps its arguments
  opaque,     // an object that keeps its name and arguments
};

/// `name` is "module.name".
PickleGlobal pickle_global(std::string_view name);

/// The element type of torch.FloatStorage and its like; nullopt for others.
std::optional<Dtype> storage_dtype(std::string_view name);
/// Its inverse, on two lines as a pickle names it: "torch\nFloatStorage".
std::string storage_class(Dtype dtype);
/// "float32" of the module torch, for dtypes of weights.
std::string_view torch_dtype(Dtype dtype);

}  // namespace teratron
