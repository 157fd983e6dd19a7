#include "teratron/models/hf_map.h"

namespace teratron {

// Megatron-LM's T5, with learned positions, LayerNorm and scaled scores, is none of Hugging Face's models.
std::vector<HfFamily> t5_hf_families() {
  return {};
}

}  // namespace teratron
