// The texts of a dataset by its name in Hugging Face's cache, or of its folder.
#pragma once

#include <optional>
#include <string>

namespace teratron {

/// Files, and how their rows are read.
struct DatasetTexts {
  std::string train, validation;  // may be empty
  bool drop_blank_rows = false;
};

/// The splits of a dataset, or of its configuration. UserError(data) where no text of the train split is
/// there: nothing is downloaded.
DatasetTexts texts_of_dataset(const std::string& name, const std::optional<std::string>& configuration);

}  // namespace teratron
