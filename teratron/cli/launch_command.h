// teratron launch FLAGS... -- COMMAND...
#pragma once

#include <span>
#include <string>

namespace teratron {

/// `args` come after the word "launch". Returns the job's exit code when all ranks ended well (0, or 75 when
/// a signal stopped them after saving); throws Fault with the exit code of the rank that failed first.
int launch_command(std::span<const std::string> args);

}  // namespace teratron
