// Finding a place for each tensor of a folder or checkpoint.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/ckpt/checkpoint.h"

namespace teratron {

/// The tensors that a folder or checkpoint has, until they find their place in the model.
struct Unplaced {
  std::map<std::string, TensorInfo> tensors;
  std::string where;
  std::string_view but;  // what describes the model
  std::vector<Problem> problems = {};

  void problem(const std::string& name, const std::string& what);
  /// Its dtype; nullopt if it is missing.
  std::optional<Dtype> place(const std::string& name, const std::vector<int64_t>& shape);
  /// UserError(checkpoint) with all problems; tensors without a place are some, but those whose name
  /// `may_stay`.
  template <typename MayStay>
  void finish(const MayStay& may_stay) {
    for (const auto& [name, tensor] : tensors) {
      if (!may_stay(name)) problem(name, "is not in the model");
    }
    if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
  }
};

}  // namespace teratron
