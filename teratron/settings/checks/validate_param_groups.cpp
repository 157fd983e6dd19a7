// Parameter groups: values of --lr-mult, and what they need.
#include <algorithm>

#include "teratron/settings/checks/validate.h"
#include "teratron/settings/param_group_settings.h"

namespace teratron {

void check_param_groups(Validation& v) {
  const Arguments& a = v.args;
  bool factor_alone = false;
  for (const std::string& text : a.lr_mult) {
    const std::optional<LrMult> value = lr_mult_from(text);
    if (!value) {
      v.reject("lr_mult",
               fmt::format("lr_mult = '{}' is not PATTERN=F with a factor of at least 0", printable(text)),
               "Use for example --lr-mult '*.mlp.*=0.1'");
      continue;
    }
    if (!value->pattern.empty()) continue;
    factor_alone = true;
    if (!a.scale_lr_cond.empty() || value->factor == 1.0) continue;
    v.reject("lr_mult", fmt::format("lr_mult = {} names no parameters", printable(text)),
             fmt::format("Use PATTERN={}, or add --scale-lr-cond PATTERN", printable(text)));
  }
  if (!a.scale_lr_cond.empty() && !a.lr_mult.empty() && !factor_alone)
    v.reject("scale_lr_cond", "scale_lr_cond has no factor", "Add --lr-mult F");
}

}  // namespace teratron
