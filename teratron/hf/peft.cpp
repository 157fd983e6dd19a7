#include "teratron/hf/peft.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "teratron/ckpt/safetensors.h"
#include "teratron/hf/float_convert.h"
#include "teratron/hf/peft_layout.h"

namespace teratron {

namespace fs = std::filesystem;
using namespace peft;

namespace {

std::vector<float> read_floats(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  std::vector<char> bytes(static_cast<size_t>(entry.bytes));
  file.read(entry, 0, entry.bytes, bytes.data());
  bytes = convert_floats(std::move(bytes), entry.dtype, Dtype::f32);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Reads the pairs of a folder and keeps what is wrong with them.
class PeftReader {
 public:
  PeftReader(const fs::path& folder, const PeftConfig& config)
      : config_(config), file_(folder / weight_file) {
    for (const SafetensorsEntry& entry : file_.entries()) left_.insert(entry.name);
  }

  void read(const HfTensor& tensor, LoraAdapters& adapters) {
    const auto [part, count] = source_parts(tensor, config_.targets);
    if (count == 0) return;
    const std::vector<Pair> pairs = pairs_of(tensor, part);
    if (!std::ranges::all_of(pairs, [](const Pair& pair) { return pair.a && pair.b; })) return;
    const int64_t rank = config_.rank, in = tensor.columns();
    LoraWeights weights{.shape_a = {count * rank, in},
                        .shape_b = {tensor.shape[0], rank},
                        .part_of_row = std::vector<int64_t>(static_cast<size_t>(tensor.shape[0]), -1),
                        .scale = config_.alpha / static_cast<double>(rank)};
    weights.a.resize(static_cast<size_t>(count * rank * in));
    weights.b.resize(static_cast<size_t>(tensor.shape[0] * rank));
    std::set<int64_t> filled;
    for (const Pair& pair : pairs) {
      const std::vector<float> a = read_floats(file_, *pair.a), b = read_floats(file_, *pair.b);
      const auto place = weights.a.begin() + part[pair.source] * rank * in;
      if (!filled.insert(part[pair.source]).second && !std::equal(a.begin(), a.end(), place))
        return problem(pair.a->name, "differs from that of a projection that is one layer with it here");
      std::copy(a.begin(), a.end(), place);
      for (const RowSlice& slice : tensor.slices()) {
        if (slice.source != pair.source) continue;
        std::copy_n(b.begin() + slice.row * rank, slice.rows * rank,
                    weights.b.begin() + slice.our_row * rank);
        std::fill_n(weights.part_of_row.begin() + slice.our_row, slice.rows, part[pair.source]);
      }
    }
    adapters[layer_of(tensor)] = std::move(weights);
  }

  void finish() {
    for (const std::string& name : left_) problem(name, "belongs to no linear layer of this model");
    if (!problems_.empty()) throw UserError(ExitCode::checkpoint, std::move(problems_));
  }

 private:
  static int64_t rows_of(const HfTensor& tensor, size_t source) {
    const HfSource& layout = tensor.sources[source];
    return layout.transposed ? layout.shape[1] : layout.shape[0];
  }

  void problem(const std::string& name, const std::string& what) {
    problems_.push_back({.what = fmt::format("\"{}\" {}", printable(name), what),
                         .where = printable(file_.path().string(), 4096),
                         .fix = "Use the model that the adapter was trained for"});
  }

  struct Pair {
    size_t source;
    const SafetensorsEntry *a, *b;  // null, with a problem, unless it is there in its shape
  };
  // Before any memory is allocated: the rank is only what the settings say.
  std::vector<Pair> pairs_of(const HfTensor& tensor, const std::vector<int64_t>& part) {
    std::vector<Pair> pairs;
    const int64_t rank = config_.rank;
    for (size_t source = 0; source < tensor.sources.size(); ++source) {
      if (part[source] < 0) continue;
      const std::string module = std::string(prefix) + module_of(tensor.sources[source]);
      pairs.push_back({source, find(module + ".lora_A.weight", {rank, tensor.columns()}),
                       find(module + ".lora_B.weight", {rows_of(tensor, source), rank})});
    }
    return pairs;
  }

  const SafetensorsEntry* find(const std::string& name, const std::vector<int64_t>& shape) {
    const SafetensorsEntry* const entry = file_.find(name);
    if (!entry) return problem(name, "is missing"), nullptr;
    left_.erase(name);
    if (entry->shape == shape && is_convertible_float(entry->dtype)) return entry;
    problem(name, fmt::format("is {} [{}], but the model has [{}]", name_of(entry->dtype),
                              fmt::join(entry->shape, ", "), fmt::join(shape, ", ")));
    return nullptr;
  }

  const PeftConfig& config_;
  SafetensorsFile file_;
  std::set<std::string> left_;
  std::vector<Problem> problems_;
};

}  // namespace

LoraAdapters read_peft(const fs::path& folder, const PeftConfig& config,
                       const std::vector<HfTensor>& tensors) {
  LoraAdapters adapters;
  PeftReader reader(folder, config);
  for (const HfTensor& tensor : tensors) reader.read(tensor, adapters);
  reader.finish();
  return adapters;
}

}  // namespace teratron
