#include "teratron/data/indexed/input_file.h"

#include <cerrno>
#include <cstring>

#include <sys/stat.h>

#include "teratron/base/error.h"

namespace teratron {

InputFile::InputFile(const std::string& path) : file_(File::open(path, ExitCode::data)) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw data_error({.what = "is not a regular file", .where = printable(path, 1000)});
  }
  size_ = file_.size();
  modified_ns_ = static_cast<int64_t>(status.st_mtim.tv_sec) * 1000000000 + status.st_mtim.tv_nsec;
}

}  // namespace teratron
