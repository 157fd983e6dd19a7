// Any safetensors file: it is refused, or every tensor can be read.
// Input: two bytes for the size of the data section, then the JSON of the header. The input itself is tried,
// too.
#include "tests/fuzz/scratch.h"

#include "teratron/base/error.h"
#include "teratron/ckpt/safetensors.h"

namespace {

void read_all(const std::string& path) {
  try {
    const teratron::SafetensorsFile file(path);
    std::vector<char> bytes;
    for (const teratron::SafetensorsEntry& entry : file.entries()) {
      bytes.resize(static_cast<size_t>(entry.bytes));
      file.read(entry, 0, entry.bytes, bytes.data());
      if (file.find(entry.name) != &entry || !teratron::checked_numel(entry.shape)) std::abort();
    }
  } catch (const teratron::UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const teratron::fuzz::Scratch scratch;
  read_all(scratch.write("raw.safetensors", {data, size}));
  std::vector<uint8_t> file(8);
  for (int i = 0; i < 8; ++i) file[static_cast<size_t>(i)] = static_cast<uint8_t>((size - 2) >> 8 * i);
  file.insert(file.end(), data + 2, data + size);
  file.resize(file.size() + static_cast<size_t>(data[0] | data[1] << 8), uint8_t{7});
  read_all(scratch.write("a.safetensors", file));
  return 0;
}
