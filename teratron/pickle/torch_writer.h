// Writes a file of torch.save (its zip format), tensor by tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "teratron/pickle/pickle_writer.h"

namespace teratron {

using AppendBytes = std::function<void(const void* data, int64_t bytes)>;

/// `write_tensor` appends the elements of each tensor of `pickle`, by its number, in their order. The file
/// must not exist, and is not valid before all are written.
void write_torch_file(const std::filesystem::path& path, PickleWriter& pickle,
                      const std::function<void(size_t tensor, const AppendBytes& append)>& write_tensor);

}  // namespace teratron
