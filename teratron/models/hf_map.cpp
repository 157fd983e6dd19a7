#include "teratron/models/hf_map.h"

#include <algorithm>

#include "teratron/base/error.h"

namespace teratron {

using nlohmann::json;

json HfConfig::get(std::string_view key, const json& otherwise) {
  const json fallback = otherwise.is_null() ? json(1) : otherwise;
  if (!has(key)) {
    if (otherwise.is_null()) problem("'{}{}' is missing", object, key);
    return fallback;
  }
  const json& value = keys[key];
  const bool is_size = fallback.is_number_integer();
  const bool fits = is_size ? value.is_number_integer() && value >= 1 && value <= int64_t{1} << 31
                    : fallback.is_number() ? value.is_number()
                                           : value.type() == fallback.type();
  if (fits) return fallback.is_number_float() ? json(value.get<double>()) : value;
  problem("'{}{}' = {} is not a {}", object, key, printable(value.dump()),
          is_size ? "size" : fallback.type_name());
  return fallback;
}

void HfConfig::unsupported(std::string_view key) {
  problem("'{}{}' = {} is not supported", object, key, printable(keys[key].dump()));
}

int64_t hf_size(const json& settings, std::string_view expression) {
  if (const size_t plus = expression.find('+'); plus != expression.npos)
    return hf_size(settings, expression.substr(0, plus)) + hf_size(settings, expression.substr(plus + 1));
  const size_t sign = expression.find_last_of("*/");
  if (const size_t colon = expression.find(':'); sign == expression.npos && colon != expression.npos) {
    const int64_t divisor = hf_size(settings, expression.substr(colon + 1));
    return divisor == 0 ? 0 : hf_size(settings, expression.substr(0, colon)) / divisor;
  }
  if (sign == expression.npos && expression.front() <= '9') return std::stoll(std::string(expression));
  if (sign == expression.npos) {
    const auto setting = settings.find(expression);
    TERATRON_ASSERT(setting != settings.end() || expression == "num_experts", "no setting {}", expression);
    if (setting != settings.end() && setting->is_array()) return std::ssize(*setting);
    return setting == settings.end() || setting->is_null() ? 0 : setting->get<int64_t>();
  }
  const int64_t a = hf_size(settings, expression.substr(0, sign));
  const int64_t b = hf_size(settings, expression.substr(sign + 1));
  if (expression[sign] == '/') return b == 0 || a % b != 0 ? 0 : a / b;
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? int64_t{1} << 60 : std::min(product, int64_t{1} << 60);
}

}  // namespace teratron
