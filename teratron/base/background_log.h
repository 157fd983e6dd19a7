// Log lines of a job, which must not stand still because nothing reads its output (base/output_queue.h).
// Without log_in_background() a line is written before print() returns, as results of a command must be.
#pragma once

#include <string>

namespace teratron {

/// From here on the functions of log.h queue lines, which a thread writes, and SIGPIPE is ignored.
/// `elsewhere` is a sentence: where lines that are dropped can be read. Later calls have no effect.
void log_in_background(const std::string& elsewhere);
/// While one lives, print() on its thread writes nothing: for a library in a program that speaks for itself.
class SilentPrint {
 public:
  SilentPrint();
  ~SilentPrint();
  SilentPrint(const SilentPrint&) = delete;
  SilentPrint& operator=(const SilentPrint&) = delete;
};

/// Waits until the queued lines are written, or for two seconds in which the reader takes none. To be called
/// before the process ends.
void flush_log();

}  // namespace teratron
