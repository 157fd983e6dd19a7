#include "teratron/models/model_plan.h"
#include "teratron/plan/flops.h"

namespace teratron {

double training_flops(const ModelPlan& model, const BatchShape& batch, FlopsConvention convention,
                      Weights weights) {
  if (!model.operators) return 0.0;
  return training_flops(model.operators({.batch = batch}, {.layers = model.layers()}), convention, weights);
}

}  // namespace teratron
