#include "teratron/nn/init.h"

#include "teratron/base/hash_name.h"
#include "teratron/kernels/random_fill.h"
#include "teratron/nn/parameter.h"

namespace teratron {

void initialize(Parameter& parameter, uint64_t seed) {
  const Init& init = parameter.options.init;
  if (init.kind == Init::Kind::constant) {
    parameter.tensor.fill_(init.value);
    return;
  }
  random_fill_(
      parameter.tensor, parameter.shard(),
      {.key = {seed, hash_name(parameter.name)},
       .distribution = init.kind == Init::Kind::normal ? Distribution::normal : Distribution::uniform,
       .scale = init.value});
}

}  // namespace teratron
