// Writes a file of torch.save (its zip format), tensor by tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "teratron/base/file.h"
#include "teratron/pickle/pickle_writer.h"

namespace teratron {

using AppendBytes = std::function<void(const void* data, int64_t bytes)>;
/// Appends the elements of a tensor of a pickle, by its number, in their order.
using WriteTensor = std::function<void(size_t tensor, const AppendBytes& append)>;

/// The file must not exist, and is not valid before all tensors are written.
void write_torch_file(const std::filesystem::path& path, PickleWriter& pickle,
                      const WriteTensor& write_tensor);

/// Such files one after another in one file: those of PyTorch's distributed checkpoints.
class TorchFileSequence {
 public:
  /// Creates the file, which must not exist.
  explicit TorchFileSequence(const std::filesystem::path& path);
  struct Place {
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  Place add(PickleWriter& pickle, const WriteTensor& write_tensor);
  /// Syncs and closes.
  void finish();

 private:
  File file_;
  int64_t bytes_ = 0;
};

}  // namespace teratron
