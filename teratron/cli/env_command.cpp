#include <thread>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/macros/Macros.h>
#include <sys/utsname.h>
#include <torch/headeronly/version.h>

#include "teratron/base/config/command_line.h"
#include "teratron/base/log.h"
#include "teratron/cli/build_info.h"
#include "teratron/cli/commands.h"
#include "teratron/comm/nccl/nccl_world.h"
#include "teratron/comm/transport/mpi_transport.h"
#include "teratron/device/device.h"

namespace teratron {

namespace {

std::string operating_system() {
  utsname name{};
  if (uname(&name) != 0) return "unknown";
  return fmt::format("{} {} ({})", name.sysname, name.release, name.machine);
}

void print_gpus() {
  try {
    const int64_t gpus = gpu_count();
    print("GPUs          {}", gpus);
    for (int64_t i = 0; i < gpus; ++i) {
      print("  GPU {}       {}", i, device_name(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(i))));
    }
  } catch (const Fault& fault) {  // print the rest regardless
    print("GPUs          {}", fault.what());
  }
}

}  // namespace

int env_command(std::span<const std::string> args) {
  if (!read_command({.name = "teratron env",
                     .example = "teratron env",
                     .summary = "Show versions, devices and build options."},
                    args))
    return 0;
  print("teratron      {}", TERATRON_VERSION);
  print("built         {}, {}", TERATRON_BUILD_TYPE, TERATRON_COMPILER);
  print("GPU kernels   {}", TERATRON_GPU_KERNELS);
  print("torch         {}", TORCH_VERSION);
  for (const auto& [name, version] : gpu_libraries()) print("{:<14}{}", name, version);
  if (const std::optional<std::string> nccl = nccl_version()) print("NCCL          {}", *nccl);
  print("MPI           {}", mpi_version().value_or("none (start jobs with `teratron launch` or torchrun)"));
  print("system        {}", operating_system());
  print("CPU           {} cores, {} threads in use, {}", std::thread::hardware_concurrency(),
        at::get_num_threads(), at::get_cpu_capability());
  print_gpus();
  return 0;
}

}  // namespace teratron
