#include "teratron/megatron/rows/centered_norm.h"

#include <cstring>

#include "teratron/hf/float_convert.h"

namespace teratron {

using nlohmann::json;

namespace {

class Sum final : public TensorSource {
 public:
  Sum(TensorSourcePtr source, float term)
      : TensorSource(source->dtype(), source->shape()), source_(std::move(source)), term_(term) {}
  void read(int64_t begin, int64_t end, char* out) const override {
    source_->read(begin, end, out);
    add_to_floats(out, end - begin, dtype(), term_);
  }

 private:
  TensorSourcePtr source_;
  float term_;
};

}  // namespace

bool is_centered_there(std::string_view name, const json& settings) {
  return name.ends_with(".self_attention.out_norm.weight") &&
         settings.value("apply_layernorm_1p", json()) == true;
}

void add_to_floats(char* values, int64_t count, Dtype dtype, float term) {
  std::vector<char> wide =
      convert_floats(std::vector<char>(values, values + count * size_of(dtype)), dtype, Dtype::f32);
  for (int64_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, wide.data() + i * sizeof(float), sizeof(float));
    value += term;
    std::memcpy(wide.data() + i * sizeof(float), &value, sizeof(float));
  }
  wide = convert_floats(std::move(wide), Dtype::f32, dtype);
  std::memcpy(values, wide.data(), wide.size());
}

TensorSourcePtr plus(TensorSourcePtr source, float term) {
  return std::make_shared<Sum>(std::move(source), term);
}

}  // namespace teratron
