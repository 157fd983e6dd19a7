#include "teratron/models/precision.h"

namespace teratron {

at::ScalarType model_dtype(const Arguments& args) {
  if (args.bf16) return at::kBFloat16;
  return args.fp16 ? at::kHalf : at::kFloat;
}

std::optional<Fp8Options> fp8_options(const Arguments& args) {
  if (!args.fp8) return std::nullopt;
  using Recipe = Fp8Options::Recipe;
  return Fp8Options{.recipe = args.fp8_recipe == "delayed" ? Recipe::delayed : Recipe::tensorwise,
                    .gradients = args.fp8 == "hybrid" ? Fp8Format::e5m2 : Fp8Format::e4m3,
                    .weight_gradients = args.fp8_wgrad,
                    .margin = args.fp8_margin,
                    .history = args.fp8_amax_history_len,
                    .most_recent = args.fp8_amax_compute_algo == "most_recent"};
}

}  // namespace teratron
