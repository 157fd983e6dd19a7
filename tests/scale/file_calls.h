// Counts the files that this process opens, looks at and removes, whichever library does it.
#pragma once

#include <cstdint>

namespace teratron {

struct FileCalls {
  int64_t opened = 0;
  int64_t looked_at = 0;  // by stat() and its kin
  int64_t removed = 0;    // files and folders
};

/// Since the start of the process.
FileCalls file_calls();

}  // namespace teratron
