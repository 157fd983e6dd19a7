#include "teratron/nn/init.h"

#include <cmath>

#include "teratron/base/error.h"
#include "teratron/base/hash_name.h"
#include "teratron/kernels/pointwise/random_fill.h"
#include "teratron/nn/parameter.h"

namespace teratron {

namespace {

double xavier_bound(const std::vector<int64_t>& shape) {
  TERATRON_ASSERT(shape.size() == 2, "Xavier initialization needs a matrix");
  return std::sqrt(6.0 / static_cast<double>(shape[0] + shape[1]));
}

}  // namespace

void initialize(Parameter& parameter, uint64_t seed) {
  if (parameter.tensor.is_meta()) return;  // a model for planning, without memory
  const Init& init = parameter.options.init;
  if (init.kind == Init::Kind::constant) {
    parameter.tensor.fill_(init.value);
    return;
  }
  const bool normal = init.kind == Init::Kind::normal, xavier = init.kind == Init::Kind::xavier;
  random_fill_(parameter.tensor, parameter.shard(),
               {.key = {seed, hash_name(parameter.name)},
                .distribution = normal ? Distribution::normal : Distribution::uniform,
                .scale = xavier ? xavier_bound(parameter.shard().global_shape) : init.value});
  if (init.map) parameter.tensor.copy_(init.map(parameter.tensor));
}

}  // namespace teratron
