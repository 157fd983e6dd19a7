// A model of Python: each pipeline stage's layers are a torch.nn.Module.
#pragma once

#include "python/module/held.h"

#include "teratron/models/model_plan.h"

namespace teratron::python {

/// `make`: f(first_layer, layers, is_first, is_last) -> (module, call). `call(values, input, batch)` computes
/// with these values of module.named_parameters(), by name: hidden states [S, B, H], or on the last stage
/// losses [S, B]. What else the plan says holds: columns, channels, losses.
ModelPlan python_model(ModelPlan plan, const Held& make);

}  // namespace teratron::python
