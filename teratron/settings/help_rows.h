// Rows of arguments.def in the --help of one program.
#pragma once

#include <string_view>

#include "teratron/base/config/config.h"

namespace teratron {

/// The heading of a group in the --help of a program: "Training" is "Run" where nothing is trained.
std::string_view heading_in(const ProgramNames& program, std::string_view group);

/// The row `name` as a program means it that does less with it than others: for ParseOptions::extra_fields
/// and arguments_help(). Empty `choices`: all.
Field reworded(std::string_view name, std::string_view help, std::string_view choices = {});

}  // namespace teratron
