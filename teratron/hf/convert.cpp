#include "teratron/hf/convert.h"

#include <cstring>
#include <memory>
#include <set>
#include <system_error>

#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/hf/config.h"
#include "teratron/hf/float_convert.h"
#include "teratron/hf/name_map.h"
#include "teratron/hf/sharded_safetensors.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::vector<char> buffer_for(const std::vector<int64_t>& shape, Dtype dtype) {
  return std::vector<char>(static_cast<size_t>(*checked_numel(shape) * size_of(dtype)));
}

// Copies the rows that a source shares with our tensor: into ours, or out of it.
template <bool into_ours>
void copy_slices(const HfTensor& tensor, size_t source, char* ours, char* theirs, int64_t element_bytes) {
  const HfSource& layout = tensor.sources[source];
  const int64_t columns = tensor.shape.size() == 1 ? 1 : tensor.shape[1];
  const auto copy = [&](int64_t our_element, int64_t their_element, int64_t count) {
    char* const our_place = ours + our_element * element_bytes;
    char* const their_place = theirs + their_element * element_bytes;
    const auto bytes = static_cast<size_t>(count * element_bytes);
    into_ours ? std::memcpy(our_place, their_place, bytes) : std::memcpy(their_place, our_place, bytes);
  };
  int64_t our_row = 0;
  for (const RowSlice& slice : tensor.slices) {
    if (slice.source == source && !layout.transposed) {
      copy(our_row * columns, slice.row * columns, slice.rows * columns);
    } else if (slice.source == source) {
      for (int64_t row = 0; row < slice.rows; ++row) {
        for (int64_t column = 0; column < columns; ++column)
          copy((our_row + row) * columns + column, column * layout.shape[1] + slice.row + row, 1);
      }
    }
    our_row += slice.rows;
  }
}

std::vector<char> cast(std::vector<char> bytes, Dtype from, Dtype to) {
  if (from == to) return bytes;
  const int64_t count = static_cast<int64_t>(bytes.size()) / size_of(from);
  std::vector<char> result(static_cast<size_t>(count * size_of(to)));
  convert_floats(from, bytes.data(), to, result.data(), count);
  return result;
}

// One of our tensors from the files.
std::vector<char> assemble(const HfTensor& tensor, const ShardedSafetensors& files, Dtype to) {
  const Dtype from = files.tensors().at(tensor.sources[0].name)->dtype;
  std::vector<char> ours = buffer_for(tensor.shape, from);
  for (size_t source = 0; source < tensor.sources.size(); ++source) {
    std::vector<char> theirs = files.read(tensor.sources[source].name);
    copy_slices<true>(tensor, source, ours.data(), theirs.data(), size_of(from));
  }
  return cast(std::move(ours), from, to);
}

// The output layer of a tied model may be stored too, but must then equal the embedding.
bool repeats_embedding(const HfModel& model, const ShardedSafetensors& files, const std::string& embedding) {
  if (!model.tied() || !files.has("lm_head.weight") || !files.has(embedding)) return false;
  const SafetensorsEntry& a = *files.tensors().at("lm_head.weight");
  const SafetensorsEntry& b = *files.tensors().at(embedding);
  return a.dtype == b.dtype && a.shape == b.shape && files.read("lm_head.weight") == files.read(embedding);
}

// Collects problems with tensors of one folder or checkpoint.
class TensorProblems {
 public:
  explicit TensorProblems(const fs::path& path) : where_(printable(path.string(), 4096)) {}
  void add(const std::string& name, const std::string& what) {
    problems_.push_back({.what = fmt::format("tensor \"{}\" {}", printable(name), what), .where = where_});
  }
  void finish() {
    if (!problems_.empty()) throw UserError(ExitCode::checkpoint, std::move(problems_));
  }

 private:
  std::string where_;
  std::vector<Problem> problems_;
};

struct ImportSource {
  const fs::path& folder;
  const HfModel& model;
  const ShardedSafetensors& files;
};

void check_import(const ImportSource& from, const std::vector<HfTensor>& tensors) {
  TensorProblems problems(from.folder);
  std::set<std::string> used;
  for (const HfTensor& tensor : tensors) {
    std::set<Dtype> dtypes;
    for (const HfSource& source : tensor.sources) {
      used.insert(source.name);
      const auto found = from.files.tensors().find(source.name);
      if (found == from.files.tensors().end()) {
        problems.add(source.name, "is missing");
        continue;
      }
      const SafetensorsEntry& entry = *found->second;
      dtypes.insert(entry.dtype);
      if (entry.shape != source.shape) {
        problems.add(source.name, fmt::format("has shape [{}], config.json requires [{}]",
                                              fmt::join(entry.shape, ", "), fmt::join(source.shape, ", ")));
      }
      if (!is_convertible_float(entry.dtype)) {
        problems.add(source.name,
                     fmt::format("has dtype {}; only F64, F32, BF16 and F16 are read", name_of(entry.dtype)));
      }
    }
    if (dtypes.size() > 1)
      problems.add(tensor.sources[0].name, "has a different dtype than the tensors it is concatenated with");
  }
  if (repeats_embedding(from.model, from.files, tensors[0].sources[0].name)) used.insert("lm_head.weight");
  for (const auto& [name, entry] : from.files.tensors()) {
    if (used.contains(name) || is_hf_buffer(name)) continue;
    problems.add(name, name == "lm_head.weight" && from.model.tied()
                           ? "differs from the word embeddings that config.json ties it to"
                           : "is in the files, but not in the model");
  }
  problems.finish();
}

void check_export(const CheckpointInfo& info, const std::vector<HfTensor>& tensors) {
  TensorProblems problems(info.path);
  std::set<std::string> used;
  for (const HfTensor& tensor : tensors) {
    used.insert(tensor.name);
    const auto found = info.tensors.find(tensor.name);
    if (found == info.tensors.end()) {
      problems.add(tensor.name, "is missing");
    } else if (found->second.shape != tensor.shape || !is_convertible_float(found->second.dtype)) {
      problems.add(tensor.name,
                   fmt::format("is {} [{}], the settings require [{}]", name_of(found->second.dtype),
                               fmt::join(found->second.shape, ", "), fmt::join(tensor.shape, ", ")));
    }
  }
  for (const auto& [name, tensor] : info.tensors) {
    const bool weight =
        name.starts_with("embedding.") || name.starts_with("decoder.") || name.starts_with("output_");
    if (weight && !used.contains(name)) problems.add(name, "has no place in the model");
  }
  problems.finish();
}

// The folder's tokenizer files, as Megatron-LM's settings.
json tokenizer_settings(const fs::path& folder) {
  const HfTokenizerFiles files = hf_tokenizer_files(fs::absolute(folder));
  const auto path = [&files](const char* name) { return files.at(name).lexically_normal().string(); };
  if (files.contains("tokenizer.json")) {
    return {{"tokenizer_type", "HuggingFaceTokenizer"}, {"tokenizer_model", path("tokenizer.json")}};
  }
  if (files.contains("vocab.json") && files.contains("merges.txt")) {
    return {{"tokenizer_type", "GPT2BPETokenizer"},
            {"vocab_file", path("vocab.json")},
            {"merge_file", path("merges.txt")}};
  }
  return json::object();
}

void write_export(const HfExport& request, const fs::path& directory, ConversionReport& report) {
  const CheckpointInfo info = open_checkpoint(request.source);
  const HfModel model = hf_model_of(info);
  const std::vector<HfTensor> tensors = hf_name_map(model, model.family->prefix);
  check_export(info, tensors);
  std::vector<SafetensorsWriter::Tensor> outputs;
  std::vector<std::pair<const HfTensor*, size_t>> origins;
  for (const HfTensor& tensor : tensors) {
    for (size_t source = 0; source < tensor.sources.size(); ++source) {
      const Dtype dtype = request.dtype.value_or(info.tensors.at(tensor.name).dtype);
      outputs.push_back({tensor.sources[source].name, dtype, tensor.sources[source].shape});
      origins.emplace_back(&tensor, source);
      report.elements += *checked_numel(tensor.sources[source].shape);
    }
  }
  CheckpointReader reader(request.source);
  std::vector<char> ours;  // of `current`, the tensor of the last output
  const HfTensor* current = nullptr;
  write_sharded_safetensors(directory, outputs, request.max_shard_bytes, [&](size_t i) {
    const auto& [tensor, source] = origins[i];
    if (current != tensor) {
      const Dtype saved = info.tensors.at(tensor->name).dtype;
      ours = buffer_for(tensor->shape, saved);
      reader.read({tensor->name, saved, Shard::replicated(tensor->shape), 0, -1, ours.data()});
      ours = cast(std::move(ours), saved, outputs[i].dtype);
      current = tensor;
    }
    std::vector<char> theirs = buffer_for(outputs[i].shape, outputs[i].dtype);
    copy_slices<false>(*tensor, source, ours.data(), theirs.data(), size_of(outputs[i].dtype));
    return theirs;
  });
  json config = json::parse(hf_config_text(model, outputs[0].dtype));
  if (request.end_token) config["eos_token_id"] = *request.end_token;
  write_text(directory / "config.json", config.dump(2) + "\n", ExitCode::checkpoint);
  for (const auto& [name, file] : request.tokenizer)
    write_text(directory / name, read_text(file, {.kind = ExitCode::checkpoint}), ExitCode::checkpoint);
  report.tensors = static_cast<int64_t>(outputs.size());
}

}  // namespace

HfTokenizerFiles hf_tokenizer_files(const fs::path& folder) {
  HfTokenizerFiles files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
                           "merges.txt", "tokenizer.model", "added_tokens.json", "chat_template.jinja"}) {
    std::error_code ignored;
    if (fs::is_regular_file(folder / name, ignored)) files[name] = folder / name;
  }
  return files;
}

ConversionReport import_hf(const HfImport& request) {
  std::error_code ignored;
  if (!fs::is_directory(request.source, ignored)) reject_pickled(request.source);
  const fs::path config_path = request.source / "config.json";
  HfModel model = parse_hf_config(read_text(config_path, {.kind = ExitCode::checkpoint}),
                                  printable(config_path.string(), 4096));
  const ShardedSafetensors files(request.source);
  std::vector<HfTensor> tensors = hf_name_map(model, "");
  if (!files.has(tensors[0].sources[0].name)) tensors = hf_name_map(model, model.family->prefix);
  check_import({request.source, model, files}, tensors);
  model.settings.update(tokenizer_settings(request.source));
  SaveRequest save{.directory = request.destination, .iteration = 0, .config = model.settings.dump()};
  ConversionReport report;
  for (const HfTensor& tensor : tensors) {
    const Dtype dtype = request.dtype.value_or(files.tensors().at(tensor.sources[0].name)->dtype);
    save.tensors.push_back({.name = tensor.name, .dtype = dtype, .shard = Shard::replicated(tensor.shape)});
    save.tensors.back().fetch = [&tensor, &files, dtype] {
      const auto bytes = std::make_shared<std::vector<char>>(assemble(tensor, files, dtype));
      return std::shared_ptr<const void>(bytes, bytes->data());
    };
    report.elements += *checked_numel(tensor.shape);
  }
  SingleHostGroup alone;
  report.result = save_checkpoint(save, alone);
  report.tensors = static_cast<int64_t>(tensors.size());
  return report;
}

ConversionReport export_hf(const HfExport& request) {
  std::error_code ignored;
  if (fs::exists(request.destination, ignored) && !fs::is_empty(request.destination, ignored)) {
    throw config_error({.what = "the folder is not empty",
                        .where = printable(request.destination.string(), 4096),
                        .fix = "Give --to-hf a new folder"});
  }
  fs::path destination = request.destination;
  if (!destination.has_filename()) destination = destination.parent_path();  // "out/"
  fs::path partial = destination;
  partial += ".partial-" + random_hex(8);
  make_directories(partial, ExitCode::config);
  ConversionReport report{.result = destination};
  try {
    write_export(request, partial, report);
    rename_path(partial, destination, ExitCode::checkpoint);
  } catch (...) {
    fs::remove_all(partial, ignored);
    throw;
  }
  sync_directory(destination.parent_path(), ExitCode::checkpoint);
  return report;
}

}  // namespace teratron
