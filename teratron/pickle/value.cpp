#include "teratron/pickle/value.h"

namespace teratron {

const PickleValue* PickleValue::find(std::string_view key) const {
  if (kind != Kind::dict) return nullptr;
  for (size_t i = items.size(); i >= 2; i -= 2) {
    const PickleValue& candidate = *items[i - 2];
    if (candidate.is(Kind::text) && candidate.text == key) return items[i - 1];
  }
  return nullptr;
}

}  // namespace teratron
