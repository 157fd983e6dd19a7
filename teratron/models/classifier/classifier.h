// What classifiers share, whatever model is below them: labels, loss, options of the head.
#pragma once

#include "teratron/data/batch.h"
#include "teratron/models/model.h"

namespace teratron {

/// What a text has.
enum class ClassifierTarget : uint8_t {
  number,   // labels f32 [B, 1]: squared error
  one_of,   // labels i64 [B, 1], a class: cross entropy; samples with a label below 0 do not count
  several,  // labels f32 [B, K], 1 for each label that it has: binary cross entropy
};

struct ClassifierOptions {
  ClassifierTarget target = ClassifierTarget::one_of;
  int64_t outputs = 2;   // K; 1 for a number
  double dropout = 0.0;  // of the pooled state
  /// Rows of a micro-batch that are the choices of one question, one after the other, each with the number of
  /// the right one as its label; with 1 output each. 1: none.
  int64_t choices = 1;
};

/// Labels [samples] of one class each, of [rows, 1], of which each sample has as many.
at::Tensor class_labels(const at::Tensor& labels, int64_t samples);

/// The column "labels" of the last stage: a class, or a value of each output.
Column labels_column(const ClassifierOptions& options);

/// The loss of the samples of a micro-batch, logits [B, K].
LossTerm classification_loss(const at::Tensor& logits_BK, const at::Tensor& labels, ClassifierTarget target);

struct ClassifierSchemaOptions {
  int64_t sequence_length = 0;
  ClassifierOptions classifier = {};
};
}  // namespace teratron
