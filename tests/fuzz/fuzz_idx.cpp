// Any .idx file, in either format, with a .bin file of any size: reads succeed or throw UserError.
// Input: two bytes for the size of the .bin file, then the .idx file.
#include "tests/fuzz/scratch.h"

#include "teratron/base/error.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/models/gpt/data/gpt_index.h"

namespace {

void use(const teratron::IndexedDataset& dataset) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < dataset.sequences(); ++i) {
    tokens.clear();
    dataset.read(i, 0, -1, tokens);
    dataset.document_of(i);
  }
  const auto lengths = dataset.lengths(0, dataset.sequences());
  teratron::build_gpt_index({0, dataset.sequences()}, lengths, {.sequence_length = 3, .samples = 10});
}

void try_format(const std::string& prefix, bool multimodal) {
  try {
    const teratron::IndexedDataset dataset(prefix, multimodal);
    try {
      dataset.verify();
    } catch (const teratron::UserError&) {  // reads must be safe without verify()
    }
    use(dataset);
  } catch (const teratron::UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const teratron::fuzz::Scratch scratch;
  const std::span<const uint8_t> input(data, size);
  const std::vector<uint8_t> bin(static_cast<size_t>(data[0] | data[1] << 8), uint8_t{7});
  scratch.write("a.bin", bin);
  scratch.write("a.idx", input.subspan(2));
  try_format(scratch.path("a"), false);
  try_format(scratch.path("a"), true);
  return 0;
}
