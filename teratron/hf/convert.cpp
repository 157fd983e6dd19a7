#include "teratron/hf/convert.h"

#include <cstring>
#include <memory>
#include <set>
#include <system_error>

#include <fmt/ranges.h>

#include "teratron/base/file.h"
#include "teratron/base/json.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/hf/float_convert.h"
#include "teratron/hf/model.h"
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
  for (const RowSlice& slice : tensor.slices()) {
    if (slice.source == source && !layout.transposed)
      copy(slice.our_row * columns, slice.row * columns, slice.rows * columns);
    if (slice.source != source || !layout.transposed) continue;
    for (int64_t row = 0; row < slice.rows; ++row) {
      for (int64_t column = 0; column < columns; ++column)
        copy((slice.our_row + row) * columns + column, column * layout.shape[1] + slice.row + row, 1);
    }
  }
}

// One of our tensors from the files.
std::vector<char> assemble(const HfTensor& tensor, const ShardedSafetensors& files, Dtype to) {
  const Dtype from = files.tensors().at(tensor.sources[0].name).dtype;
  std::vector<char> ours = buffer_for(tensor.shape, from);
  for (size_t source = 0; source < tensor.sources.size(); ++source) {
    std::vector<char> theirs = files.read(tensor.sources[source].name);
    copy_slices<true>(tensor, source, ours.data(), theirs.data(), size_of(from));
  }
  return convert_floats(std::move(ours), from, to);
}

// The tensors that a folder or checkpoint has, until they find their place in the model.
struct Unplaced {
  std::map<std::string, TensorInfo> tensors;
  std::string where;
  std::string_view but;  // what describes the model
  std::vector<Problem> problems = {};

  void problem(const std::string& name, const std::string& what) {
    problems.push_back({fmt::format("tensor \"{}\" {}", printable(name), what), where, {}});
  }
  // Its dtype; nullopt if it is missing.
  std::optional<Dtype> place(const std::string& name, const std::vector<int64_t>& shape) {
    const auto found = tensors.extract(name);
    if (found.empty()) {
      problem(name, "is missing");
      return std::nullopt;
    }
    const auto& [dtype, found_shape] = found.mapped();
    if (found_shape != shape || !is_convertible_float(dtype))
      problem(name, fmt::format("is {} [{}], {} F64, F32, BF16 or F16 [{}]", name_of(dtype),
                                fmt::join(found_shape, ", "), but, fmt::join(shape, ", ")));
    return dtype;
  }
  // All others are errors, but those whose name `may_stay`.
  template <typename MayStay>
  void finish(const MayStay& may_stay) {
    for (const auto& [name, tensor] : tensors) {
      if (!may_stay(name)) problem(name, "is not in the model");
    }
    if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
  }
};

void check_import(const HfImport& request, const HfFamily& family, const ShardedSafetensors& files,
                  const std::vector<HfTensor>& tensors) {
  Unplaced unplaced{files.tensors(), printable(request.source.string(), 4096), "but config.json requires"};
  for (const HfTensor& tensor : tensors) {
    std::set<Dtype> dtypes;
    for (const HfSource& source : tensor.sources) {
      if (const auto dtype = unplaced.place(source.name, source.shape)) dtypes.insert(*dtype);
    }
    if (dtypes.size() > 1)
      unplaced.problem(tensor.sources[0].name, "has a different dtype than those it is concatenated with");
  }
  for (const HfTensor& tensor : tensors) {
    for (const std::string& copy : tensor.copies) {
      const std::string& original = tensor.sources[0].name;
      const auto found = unplaced.tensors.extract(copy);
      if (found.empty() || !files.has(original)) continue;
      if (found.mapped() != files.tensors().at(original) || files.read(copy) != files.read(original))
        unplaced.problem(copy, fmt::format("differs from \"{}\", whose copy it is in this model", original));
    }
  }
  unplaced.finish([&family](const std::string& name) {
    return std::ranges::any_of(family.buffers, [&](std::string_view end) { return name.ends_with(end); });
  });
}

// Files of early releases have other names for some tensors.
void use_old_names(std::vector<HfTensor>& tensors, const HfFamily& family, const ShardedSafetensors& files) {
  for (HfTensor& tensor : tensors) {
    for (HfSource& source : tensor.sources) {
      for (const auto& [end, old_end] : family.old_ends) {
        if (!source.name.ends_with(end) || files.has(source.name)) continue;
        const std::string old = source.name.substr(0, source.name.size() - end.size()) + std::string(old_end);
        if (files.has(old)) source.name = old;
      }
    }
  }
}

// By what transformers 4 writes beside the vocab.txt of a BERT; null for rules that no --tokenizer-type has.
json bert_tokenizer_type(const HfTokenizerFiles& files) {
  json config = json::object();
  if (files.contains("tokenizer_config.json")) {
    config = read_json(files.at("tokenizer_config.json"), {.kind = ExitCode::checkpoint});
  }
  const auto flag = [&config](const char* name, bool fallback) {
    return config.is_object() && config.contains(name) && config[name].is_boolean() ? config[name].get<bool>()
                                                                                    : fallback;
  };
  const bool lower = flag("do_lower_case", true);
  if (flag("strip_accents", lower) != lower || !flag("tokenize_chinese_chars", true)) return nullptr;
  return lower ? "BertWordPieceLowerCase" : "BertWordPieceCase";
}

// The folder's tokenizer files, as Megatron-LM's settings.
json tokenizer_settings(const fs::path& folder) {
  const HfTokenizerFiles files = hf_tokenizer_files(fs::absolute(folder));
  const auto path = [&files](const char* name) { return files.at(name).lexically_normal().string(); };
  const json bert = files.contains("vocab.txt") ? bert_tokenizer_type(files) : json();
  if (!bert.is_null()) return {{"tokenizer_type", bert}, {"vocab_file", path("vocab.txt")}};
  if (files.contains("tokenizer.json"))
    return {{"tokenizer_type", "HuggingFaceTokenizer"}, {"tokenizer_model", path("tokenizer.json")}};
  if (!files.contains("vocab.json") || !files.contains("merges.txt")) return json::object();
  return {{"tokenizer_type", "GPT2BPETokenizer"},
          {"vocab_file", path("vocab.json")},
          {"merge_file", path("merges.txt")}};
}

void write_export(const HfExport& request, const fs::path& directory, ConversionReport& report) {
  const CheckpointInfo info = open_checkpoint(request.source);
  const HfModel model = hf_model_of(info);
  const std::vector<HfTensor> tensors = hf_tensors(model, info.tensors.size());
  Unplaced unplaced{info.tensors, model.where, "but the settings require"};
  std::vector<SafetensorsWriter::Tensor> outputs;
  for (const HfTensor& tensor : tensors) {
    const std::optional<Dtype> saved = unplaced.place(tensor.name, tensor.shape);
    for (const HfSource& source : tensor.sources)
      outputs.push_back({source.name, request.dtype.value_or(saved.value_or(Dtype::f32)), source.shape});
  }
  unplaced.finish([](const std::string& name) { return name.starts_with("optimizer."); });
  CheckpointReader reader(request.source);
  auto tensor = tensors.begin();
  size_t source = 0;
  std::vector<char> ours;
  write_sharded_safetensors(directory, outputs, request.max_shard_bytes, [&](size_t i) {
    if (source == tensor->sources.size()) ++tensor, source = 0;
    if (source == 0) {
      const Dtype saved = info.tensors.at(tensor->name).dtype;
      ours = buffer_for(tensor->shape, saved);
      reader.read({tensor->name, saved, Shard::replicated(tensor->shape), 0, -1, ours.data()});
      ours = convert_floats(std::move(ours), saved, outputs[i].dtype);
    }
    std::vector<char> theirs = buffer_for(outputs[i].shape, outputs[i].dtype);
    report.elements += *checked_numel(outputs[i].shape);
    copy_slices<false>(*tensor, source++, ours.data(), theirs.data(), size_of(outputs[i].dtype));
    return theirs;
  });
  json config = hf_config(model, outputs[0].dtype);
  if (request.end_token) config["eos_token_id"] = *request.end_token;
  write_text(directory / "config.json", config.dump(2) + "\n", ExitCode::checkpoint);
  for (const auto& [name, file] : request.tokenizer)
    write_text(directory / name, read_text(file, {.kind = ExitCode::checkpoint}), ExitCode::checkpoint);
  for (const auto& [name, text] : request.tokenizer_contents)
    write_text(directory / name, text, ExitCode::checkpoint);
  report.tensors = static_cast<int64_t>(outputs.size());
  report.notices = model.notices;
}

}  // namespace

HfTokenizerFiles hf_tokenizer_files(const fs::path& folder) {
  HfTokenizerFiles files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
                           "merges.txt", "vocab.txt", "tokenizer.model", "added_tokens.json",
                           "chat_template.jinja", "chat_template.json", "generation_config.json"}) {
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
  const size_t count = files.tensors().size();
  std::vector<HfTensor> tensors = hf_tensors(model, count, model.family->prefix);
  if (!files.has(tensors[0].sources[0].name)) tensors = hf_tensors(model, count);
  use_old_names(tensors, *model.family, files);
  check_import(request, *model.family, files, tensors);
  model.settings.update(tokenizer_settings(request.source));
  model.settings["model_family"] = model.family->family;
  SaveRequest save{
      .directory = request.destination, .iteration = 0, .config = model.settings.dump(), .writers = 1};
  ConversionReport report{.tensors = static_cast<int64_t>(tensors.size())};
  for (const HfTensor& tensor : tensors) {
    const Dtype dtype = request.dtype.value_or(files.tensors().at(tensor.sources[0].name).dtype);
    save.tensors.push_back({.name = tensor.name, .dtype = dtype, .shard = Shard::replicated(tensor.shape)});
    save.tensors.back().fetch = [&tensor, &files, dtype] {
      const auto bytes = std::make_shared<std::vector<char>>(assemble(tensor, files, dtype));
      return std::shared_ptr<const void>(bytes, bytes->data());
    };
    report.elements += *checked_numel(tensor.shape);
  }
  SingleHostGroup alone;
  report.result = save_checkpoint(save, alone).path;
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
