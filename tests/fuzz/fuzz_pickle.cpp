// Any file of torch.save: it is refused, or every tensor in it can be read, and no value contains itself.
// Input: the pickle of a zip file's data.pkl, alone and as a whole file.
#include <cstdint>
#include <string>

#include "teratron/base/error.h"
#include "teratron/pickle/torch_file.h"
#include "teratron/pickle/unpickler.h"

namespace {

// At most so many values: shared ones make walks exponential.
void read_all(const teratron::TorchFile& file, const teratron::PickleValue& value, int& left) {
  if (--left < 0) return;
  if (value.is(teratron::PickleValue::Kind::tensor) && teratron::numel(value.tensor()) < 1 << 16)
    file.read(value.tensor());
  for (const teratron::PickleValue* item : value.items()) read_all(file, *item, left);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    teratron::parse_pickle(text, "pickle");
  } catch (const teratron::UserError&) {
  }
  try {
    const teratron::TorchFile file(teratron::bytes_in_memory(text), "file");
    int left = 10000;
    read_all(file, file.root(), left);
  } catch (const teratron::UserError&) {
  }
  return 0;
}
