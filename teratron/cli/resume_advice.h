// What a job that ended early says of going on.
#pragma once

#include <optional>
#include <string>

namespace teratron {

/// A notice that names the last checkpoint in `save` and the command that goes on from it: this process's,
/// without --fresh. Nothing without --save.
void print_resume_advice(const std::optional<std::string>& save);

/// " from FOLDER", of the last checkpoint; "" if there is none.
std::string from_last_checkpoint(const std::optional<std::string>& save);

}  // namespace teratron
