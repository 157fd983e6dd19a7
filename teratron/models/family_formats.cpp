#include "teratron/models/family_formats.h"

#include "teratron/models/hf_classifiers.h"

namespace teratron {

#define TERATRON_FAMILY(name) FamilyFormats name##_formats();
#include "teratron/models/families.def"
#undef TERATRON_FAMILY

const std::vector<FamilyFormats>& family_formats() {
  static const std::vector<FamilyFormats> formats = [] {
    std::vector<FamilyFormats> all;
#define TERATRON_FAMILY(name)      \
  all.push_back(name##_formats()); \
  all.back().family = #name;
#include "teratron/models/families.def"
#undef TERATRON_FAMILY
    for (FamilyFormats& one : all) {
      for (HfFamily& model : one.hf) model.family = one.family;
      if (one.megatron) one.megatron->family = one.family;
    }
    return all;
  }();
  return formats;
}

const std::vector<HfFamily>& hf_families() {
  static const std::vector<HfFamily> families = [] {
    std::vector<HfFamily> all;
    for (const FamilyFormats& one : family_formats()) all.insert(all.end(), one.hf.begin(), one.hf.end());
    for (const FamilyFormats& one : family_formats()) {
      for (const HfFamily& model : one.hf) {
        if (one.hf_classifier) all.push_back(classifier_of(model, *one.hf_classifier));
      }
    }
    return all;
  }();
  return families;
}

const std::vector<MegatronModel>& megatron_models() {
  static const std::vector<MegatronModel> models = [] {
    std::vector<MegatronModel> all;
    for (const FamilyFormats& one : family_formats()) {
      if (one.megatron) all.push_back(*one.megatron);
    }
    return all;
  }();
  return models;
}

std::string saved_family(const nlohmann::json& config) {
  const auto family = config.find("model_family");
  return family != config.end() && family->is_string() ? family->get<std::string>()
                                                       : family_formats().front().family;
}

}  // namespace teratron
