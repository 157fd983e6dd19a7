// What the data of `teratron finetune --hf` say of the training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "teratron/settings/arguments.h"

namespace teratron {

/// What the labels of JSON lines {"text": "...", "label": ...} are.
struct LabelKind {
  bool are_classes = true;  // all are whole numbers from 0, else numbers to predict
  int64_t classes = 2;      // one more than the largest
};

/// The labels of the data to train on, or to evaluate on if there are no others; nullopt if the first line
/// has none. Other labels than numbers count as classes, which the training reports. UserError for files that
/// cannot be read.
std::optional<LabelKind> labels_in_data(const Arguments& args);

/// Mean bytes of an example in JSON, of those at the beginning of the data; nullopt if there are none or they
/// cannot be read, which the training reports.
std::optional<double> bytes_per_example(const Arguments& args);

}  // namespace teratron
