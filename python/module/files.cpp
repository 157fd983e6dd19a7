#include "python/module/files.h"

#include <stdexcept>

#include "teratron/base/tensor_dtype.h"

namespace teratron::python {

namespace {

std::filesystem::path find(const std::string& folder, std::optional<int64_t> iteration) {
  SingleHostGroup alone;
  if (const auto found = find_checkpoint(folder, iteration, alone)) return *found;
  throw checkpoint_error({.what = "there is no checkpoint",
                          .where = printable(folder, 4096),
                          .fix = "Name the folder that save= had, or one of its iter_* folders"});
}

}  // namespace

CheckpointFile::CheckpointFile(const std::string& folder, std::optional<int64_t> iteration)
    : reader_(std::make_unique<CheckpointReader>(find(folder, iteration))) {}

const TensorInfo& CheckpointFile::tensor(const std::string& name) const {
  const auto found = info().tensors.find(name);
  if (found == info().tensors.end()) throw std::out_of_range(name);
  return found->second;
}

at::Tensor CheckpointFile::read(const std::string& name) const {
  const TensorInfo& tensor = this->tensor(name);
  const auto type = scalar_type_of(tensor.dtype);
  if (!type) {
    throw checkpoint_error({.what = fmt::format("tensor {} has a dtype that torch does not have here", name),
                            .where = info().path.string(),
                            .fix = "Read its file"});
  }
  const at::Tensor values = at::empty(tensor.shape, *type);
  reader_->read({.name = name,
                 .dtype = tensor.dtype,
                 .shard = Shard::replicated(tensor.shape),
                 .data = values.data_ptr()});
  return values;
}

int64_t CheckpointFile::verify() const {
  return verify_checkpoint(info().path);
}

}  // namespace teratron::python
