#include "teratron/cli/inference_program.h"

#include <ATen/Parallel.h>

#include "teratron/base/log.h"
#include "teratron/comm/launch_env.h"

namespace teratron {

void start_inference(const ParsedArguments& parsed) {
  if (read_launch_env(process_environment).rank == 0) {
    for (const std::string& line : parsed.notices) notice_line(line);
  }
  if (parsed.args.num_threads) at::set_num_threads(static_cast<int>(*parsed.args.num_threads));
}

}  // namespace teratron
