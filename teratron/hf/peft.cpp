#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "teratron/base/json.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/hf/float_convert.h"
#include "teratron/hf/peft_layout.h"
#include "teratron/models/lora_names.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;
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
    const int64_t rank = config_.rank, in = tensor.columns();
    LoraWeights weights{.shape_a = {count * rank, in},
                        .shape_b = {tensor.shape[0], rank},
                        .part_of_row = std::vector<int64_t>(static_cast<size_t>(tensor.shape[0]), -1),
                        .scale = config_.alpha / static_cast<double>(rank)};
    weights.a.resize(static_cast<size_t>(count * rank * in));
    weights.b.resize(static_cast<size_t>(tensor.shape[0] * rank));
    for (size_t source = 0; source < tensor.sources.size(); ++source) {
      if (part[source] < 0) continue;
      const std::string module = std::string(prefix) + module_of(tensor.sources[source]);
      const std::vector<float> a = pair(module + ".lora_A.weight", {rank, in});
      const std::vector<float> b = pair(module + ".lora_B.weight", {rows_of(tensor, source), rank});
      if (a.empty() || b.empty()) continue;
      std::copy(a.begin(), a.end(), weights.a.begin() + part[source] * rank * in);
      for (const RowSlice& slice : tensor.slices()) {
        if (slice.source != source) continue;
        std::copy_n(b.begin() + slice.row * rank, slice.rows * rank,
                    weights.b.begin() + slice.our_row * rank);
        std::fill_n(weights.part_of_row.begin() + slice.our_row, slice.rows, part[source]);
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

  // Empty, with a problem, unless it is there in this shape.
  std::vector<float> pair(const std::string& name, const std::vector<int64_t>& shape) {
    const SafetensorsEntry* const entry = file_.find(name);
    if (!entry) return problem(name, "is missing"), std::vector<float>();
    left_.erase(name);
    if (entry->shape != shape || !is_convertible_float(entry->dtype)) {
      problem(name, fmt::format("is {} [{}], but the model has [{}]", name_of(entry->dtype),
                                fmt::join(entry->shape, ", "), fmt::join(shape, ", ")));
      return {};
    }
    return read_floats(file_, *entry);
  }

  const PeftConfig& config_;
  SafetensorsFile file_;
  std::set<std::string> left_;
  std::vector<Problem> problems_;
};

void check_plain(const json& config, const fs::path& path) {
  const auto only = [&](const char* name, const json& neutral) {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null() || *found == neutral ||
        (found->is_object() && found->empty()) || (found->is_array() && found->empty()))
      return;
    throw refuse(fmt::format("{} is {}, which is not supported", name, printable(found->dump(), 60)), path,
                 "Use an adapter of plain LoRA on linear layers, or merge it with PEFT");
  };
  if (setting(config, "peft_type", std::string()) != "LORA")
    throw refuse("the adapter is not LoRA", path, "Use an adapter with peft_type LORA");
  only("bias", "none");
  only("use_dora", false);
  only("lora_bias", false);
  for (const char* const name : {"rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication",
                                 "trainable_token_indices", "layers_to_transform"})
    only(name, nullptr);
}

}  // namespace

PeftConfig read_peft_config(const fs::path& folder) {
  const fs::path path = folder / config_file;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) {
    throw config_error({.what = "the folder has no adapter_config.json",
                        .where = printable(folder.string(), 4096),
                        .fix = "Name one that PEFT or --lora-out wrote"});
  }
  const json config = read_json(path, {.where = "", .kind = ExitCode::checkpoint});
  if (!config.is_object())
    throw refuse("the file is not a JSON object", path, "Give a folder that PEFT wrote");
  check_plain(config, path);
  try {
    PeftConfig result{.rank = config.at("r").get<int64_t>(),
                      .alpha = config.at("lora_alpha").get<double>(),
                      .dropout = setting(config, "lora_dropout", 0.0)};
    if (result.rank < 1) throw refuse("r is not a rank", path, "Use 1 or more");
    if (setting(config, "use_rslora", false)) result.alpha *= std::sqrt(static_cast<double>(result.rank));
    std::set<std::string> targets;
    const SafetensorsFile file(folder / weight_file);
    for (const SafetensorsEntry& entry : file.entries()) {
      const std::string_view name = entry.name;
      const size_t end = name.rfind(".lora_");
      const std::string target = lora_target(name.substr(0, end == name.npos ? name.size() : end));
      if (target.empty() || end == name.npos)
        throw refuse(fmt::format("\"{}\" is not the adapter of a known linear layer", printable(name)),
                     folder / weight_file, "Train adapters of the attention's and MLP's linear layers");
      targets.insert(target);
    }
    result.targets.assign(targets.begin(), targets.end());
    return result;
  } catch (const json::exception& error) {
    throw refuse(error.what(), path, "Give a folder that PEFT wrote");
  }
}

LoraAdapters read_peft(const fs::path& folder, const PeftConfig& config,
                       const std::vector<HfTensor>& tensors) {
  LoraAdapters adapters;
  PeftReader reader(folder, config);
  for (const HfTensor& tensor : tensors) reader.read(tensor, adapters);
  reader.finish();
  return adapters;
}

}  // namespace teratron
