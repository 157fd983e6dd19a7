// What the data and a program's functions (registry.h) are built from.
#pragma once

#include "teratron/comm/mesh/mesh.h"
#include "teratron/settings/arguments.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

struct TrainContext {
  const Arguments& args;
  const Tokenizer& tokenizer;
  const Mesh& mesh;
};

}  // namespace teratron
