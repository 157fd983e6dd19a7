#include "teratron/models/classifier/classifier.h"

#include <ATen/ATen.h>

namespace teratron {

namespace {

constexpr int64_t no_label = -1;

}  // namespace

at::Tensor class_labels(const at::Tensor& labels, int64_t samples) {
  return labels.slice(0, 0, labels.size(0), labels.size(0) / samples).squeeze(1);
}

LossTerm classification_loss(const at::Tensor& logits_BK, const at::Tensor& labels, ClassifierTarget target) {
  const at::Tensor scores_BK = logits_BK.scalar_type() == at::kDouble ? logits_BK : logits_BK.to(at::kFloat);
  const auto samples = static_cast<double>(scores_BK.size(0));
  const at::Tensor count = at::full({}, samples, scores_BK.options().requires_grad(false));
  switch (target) {
    case ClassifierTarget::number:
      return {.sum = (scores_BK - labels.to(scores_BK.scalar_type())).square().sum(), .count = count};
    case ClassifierTarget::one_of: {
      const at::Tensor classes_B = class_labels(labels, scores_BK.size(0));
      return {.sum = at::cross_entropy_loss(scores_BK, classes_B, {}, at::Reduction::Sum, no_label),
              .count = classes_B.ge(0).sum().clamp_min(1).to(scores_BK.scalar_type())};
    }
    case ClassifierTarget::several:
      break;
  }
  const at::Tensor mean = at::binary_cross_entropy_with_logits(scores_BK, labels.to(scores_BK.scalar_type()));
  return {.sum = mean * samples, .count = count};
}

Column labels_column(const ClassifierOptions& options) {
  const bool one_of = options.target == ClassifierTarget::one_of;
  return {.name = "labels",
          .type = one_of ? ColumnType::i64 : ColumnType::f32,
          .shape = {one_of ? 1 : options.outputs},
          .kind = Column::Kind::sample,
          .stages = Column::Stages::last};
}

}  // namespace teratron
