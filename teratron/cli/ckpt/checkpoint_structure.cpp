#include "teratron/cli/ckpt/checkpoint_structure.h"

#include <map>
#include <string>

#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/cli/ckpt/ckpt_megatron.h"
#include "teratron/hf/weight_files.h"
#include "teratron/megatron/checkpoint_format.h"
#include "teratron/megatron/structure.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

void print_flat(const std::map<std::string, TensorInfo>& tensors) {
  for (const auto& [name, tensor] : tensors)
    print_tensor(name, tensor.shape, [](const std::string& line) { print_line(line); });
}

}  // namespace

void print_checkpoint_structure(const fs::path& path, std::optional<int64_t> step) {
  switch (checkpoint_format(path)) {
    case CheckpointFormat::teratron:
      return print_flat(open_checkpoint(locate_checkpoint(path, step)).tensors);
    case CheckpointFormat::hugging_face:
      return print_flat(WeightFiles(path).tensors());
    case CheckpointFormat::megatron:
      return print_megatron_structure(path, step);
  }
}

}  // namespace teratron
