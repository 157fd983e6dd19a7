// A pickle as data, without running any of it. A pickle is a program that may call any function of any
// module. Here only the classes and functions listed in globals.cpp are accepted, and none is called. Tensors
// become descriptions, argparse.Namespace a dict, enums and classes of Megatron-LM their names. All others
// are refused by name.
//
// Time is linear in the size of the stream, memory at most as large and 40 MiB more. Cycles are refused, and
// values that are shared so often that a walk of all would see many times more of them than there are.
#pragma once

#include <string>
#include <string_view>

#include "teratron/pickle/value.h"

namespace teratron {

struct PickleOptions {
  size_t most_bytes = size_t{40} << 20;  // of the values, beyond as many as the stream has
  size_t depth = 200;
  /// The advice in errors.
  std::string_view fix =
      "Use an undamaged checkpoint that torch.save wrote from tensors, numbers, texts, lists and dicts";
};

/// The pickle at the beginning of `stream`, which must outlive it; UserError(checkpoint) if it is invalid, or
/// holds what is not allowed. `where` names the file in errors.
Pickle parse_pickle(std::string_view stream, const std::string& where, const PickleOptions& options = {});

}  // namespace teratron
