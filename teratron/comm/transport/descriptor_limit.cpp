#include "teratron/comm/transport/descriptor_limit.h"

#include <cerrno>

#include <sys/resource.h>

namespace teratron {

int64_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit raised{.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  if (limit.rlim_cur < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  return static_cast<int64_t>(limit.rlim_cur);
}

void check_descriptors(int error, const std::string& what) {
  if (error == ENFILE) {
    throw Fault(
        fmt::format("no file descriptor for {}: this machine has too many open files (sysctl "
                    "fs.file-max). Raise it, or close other programs",
                    what));
  }
  if (error != EMFILE) return;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  throw Fault(
      fmt::format("no file descriptor for {}: this process may open {}. Raise the hard limit: ulimit "
                  "-Hn, LimitNOFILE= of a systemd unit, --ulimit nofile= of a container",
                  what, limit.rlim_cur));
}

}  // namespace teratron
