#include "teratron/nn/layer_state.h"

#include <algorithm>

namespace teratron {

StateNeeds LayerStates::needs() const {
  StateNeeds sum;
  for (const auto& state : states_) {
    if (state) sum += state->needs();
  }
  return sum;
}

void LayerStates::allocate(const StateCapacity& capacity) {
  for (const auto& state : states_) {
    if (state) state->allocate(capacity);
  }
}

void LayerStates::copy(const StateCopies& copies) {
  for (const auto& state : states_) {
    if (state) state->copy(copies);
  }
}

bool LayerStates::decodes_from_tables() const {
  return std::ranges::all_of(states_,
                             [](const auto& state) { return !state || state->decodes_from_tables(); });
}

}  // namespace teratron
