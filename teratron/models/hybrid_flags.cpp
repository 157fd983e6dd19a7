#include "teratron/models/hybrid_flags.h"

#include <utility>

namespace teratron {

void refuse_hybrids(const Arguments& args, std::vector<Problem>& problems) {
  for (const auto& [flag, given] :
       {std::pair("--hybrid-layer-pattern", args.hybrid_layer_pattern.has_value()),
        std::pair("--hybrid-attention-ratio", args.hybrid_attention_ratio > 0.0),
        std::pair("--hybrid-mlp-ratio", args.hybrid_mlp_ratio > 0.0)}) {
    if (given)
      problems.push_back({.what = "only models of family mamba have layers of several kinds",
                          .where = flag,
                          .fix = "Use `teratron pretrain mamba`, or leave it out"});
  }
}

}  // namespace teratron
