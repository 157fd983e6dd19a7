// Any model.safetensors.index.json beside two files: it is refused, or every tensor can be read.
#include "tests/fuzz/scratch.h"

#include "teratron/base/error.h"
#include "teratron/hf/weight_files.h"

namespace {

struct Folder {
  teratron::fuzz::Scratch scratch;
  Folder() {
    for (const std::string name : {"a", "b"}) {
      teratron::SafetensorsWriter file(
          scratch.path(name + ".safetensors"),
          {{name + ".w", teratron::Dtype::f32, {2, 3}}, {name + ".b", teratron::Dtype::bf16, {3}}}, {});
      const std::vector<char> bytes(24, 'x');
      file.write(bytes.data(), 24);
      file.write(bytes.data(), 6);
      file.finish();
    }
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  folder.scratch.write("model.safetensors.index.json", {data, size});
  try {
    const teratron::WeightFiles model(folder.scratch.path(""));
    for (const auto& [name, info] : model.tensors()) model.read(name);
  } catch (const teratron::UserError&) {
  }
  return 0;
}
