// The settings of a training, as a program of Python gives them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "teratron/models/family.h"
#include "teratron/settings/arguments.h"

namespace teratron::python {

/// Where a training's samples come from.
enum class Data : uint8_t {
  later,     // it need not be known yet
  settings,  // the settings must name them
  program    // the program has them
};

class Settings {
 public:
  /// `flags` as those of `teratron pretrain FAMILY`. UserError(config) with all problems.
  Settings(const std::string& family, std::vector<std::string> flags, int64_t world_size, Data data);

  const Family& family() const { return family_; }
  const ParsedArguments& parsed() const { return parsed_; }
  const Arguments& args() const { return parsed_.args; }
  const std::vector<std::string>& flags() const { return flags_; }
  int64_t world_size() const { return world_size_; }
  /// As a JSON object, by Megatron-LM's names.
  std::string json() const;
  /// These settings for a training with data as said.
  Settings with(Data data) const { return {std::string(family_.name), flags_, world_size_, data}; }

 private:
  const Family& family_;
  std::vector<std::string> flags_;
  int64_t world_size_;
  ParsedArguments parsed_;
};

}  // namespace teratron::python
