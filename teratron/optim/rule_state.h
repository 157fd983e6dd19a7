// The state that an optimizer rule keeps. Independent of torch: readers of other checkpoint formats use it.
#pragma once

#include <string_view>

#include "teratron/base/dtype.h"

namespace teratron {

/// A tensor of the parameter's shape, zero before the first step. Checkpoints name it
/// "optimizer.<name>.<parameter>".
struct RuleState {
  std::string_view name;
  Dtype dtype = Dtype::f32;  // fp64 models keep all state in fp64
};

}  // namespace teratron
