#include "teratron/hf/convert.h"

#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <system_error>

#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/float_convert.h"
#include "teratron/hf/checkpoint_files.h"
#include "teratron/hf/config_import.h"
#include "teratron/hf/name_map.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

int64_t numel_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Moves the rows of one run between our tensor (from row `ours` on) and a source, in either direction.
struct RowCopy {
  const HfMapping& mapping;
  int64_t element;  // bytes

  enum class Direction : uint8_t { to_ours, to_source };
  void operator()(const RowRun& run, int64_t our_row, char* ours, char* theirs, Direction direction) const {
    const HfSource& source = mapping.sources[run.source];
    const int64_t columns = mapping.shape.size() == 1 ? 1 : mapping.shape[1];
    const auto move = [direction](char* our_bytes, char* their_bytes, int64_t bytes) {
      if (direction == Direction::to_ours) {
        std::memcpy(our_bytes, their_bytes, static_cast<size_t>(bytes));
      } else {
        std::memcpy(their_bytes, our_bytes, static_cast<size_t>(bytes));
      }
    };
    if (!source.transposed) {
      move(ours + our_row * columns * element, theirs + run.row * columns * element,
           run.rows * columns * element);
      return;
    }
    const int64_t their_columns = source.shape[1];
    for (int64_t row = 0; row < run.rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        move(ours + ((our_row + row) * columns + column) * element,
             theirs + (column * their_columns + run.row + row) * element, element);
      }
    }
  }
};

std::vector<char> converted(std::vector<char> bytes, Dtype from, Dtype to) {
  if (from == to) return bytes;
  const int64_t count = static_cast<int64_t>(bytes.size()) / size_of(from);
  std::vector<char> result(static_cast<size_t>(count * size_of(to)));
  convert_floats(from, bytes.data(), to, result.data(), count);
  return result;
}

// One of our tensors out of the files.
std::vector<char> assemble(const HfMapping& mapping, const HfFiles& files, Dtype to) {
  const Dtype from = files.tensors().at(mapping.sources[0].name)->dtype;
  std::vector<std::vector<char>> sources;
  for (const HfSource& source : mapping.sources) sources.push_back(files.read(source.name));
  std::vector<char> ours(static_cast<size_t>(numel_of(mapping.shape) * size_of(from)));
  const RowCopy copy{mapping, size_of(from)};
  int64_t row = 0;
  for (const RowRun& run : mapping.runs) {
    copy(run, row, ours.data(), sources[run.source].data(), RowCopy::Direction::to_ours);
    row += run.rows;
  }
  return converted(std::move(ours), from, to);
}

// One tensor of theirs out of ours (already in its final type).
std::vector<char> disassemble(const HfMapping& mapping, size_t source, std::vector<char>& ours,
                              int64_t element) {
  std::vector<char> theirs(static_cast<size_t>(numel_of(mapping.sources[source].shape) * element));
  const RowCopy copy{mapping, element};
  int64_t row = 0;
  for (const RowRun& run : mapping.runs) {
    if (run.source == source) copy(run, row, ours.data(), theirs.data(), RowCopy::Direction::to_source);
    row += run.rows;
  }
  return theirs;
}

// A tied output layer may be stored too, but must then be the same.
bool repeats_embedding(const HfModel& model, const HfFiles& files, const std::string& embedding) {
  if (!model.tied || !files.has("lm_head.weight") || !files.has(embedding)) return false;
  const SafetensorsEntry& a = *files.tensors().at("lm_head.weight");
  const SafetensorsEntry& b = *files.tensors().at(embedding);
  return a.dtype == b.dtype && a.shape == b.shape && files.read("lm_head.weight") == files.read(embedding);
}

struct ImportCheck {
  const HfImport& request;
  const HfModel& model;
  const HfFiles& files;
};

void check_import(const ImportCheck& check, const std::vector<HfMapping>& mappings) {
  std::vector<Problem> problems;
  const std::string where = printable(check.request.source.string(), 4096);
  const auto problem = [&](const std::string& name, const std::string& what) {
    problems.push_back({.what = fmt::format("tensor \"{}\" {}", printable(name), what), .where = where});
  };
  std::set<std::string> used;
  for (const HfMapping& mapping : mappings) {
    std::set<Dtype> dtypes;
    for (const HfSource& source : mapping.sources) {
      used.insert(source.name);
      const auto found = check.files.tensors().find(source.name);
      if (found == check.files.tensors().end()) {
        problem(source.name, "is missing");
        continue;
      }
      const SafetensorsEntry& entry = *found->second;
      dtypes.insert(entry.dtype);
      if (entry.shape != source.shape) {
        problem(source.name, fmt::format("has shape [{}], config.json asks for [{}]",
                                         fmt::join(entry.shape, ", "), fmt::join(source.shape, ", ")));
      }
      if (!is_convertible_float(entry.dtype)) {
        problem(source.name,
                fmt::format("has type {}; only F64, F32, BF16 and F16 are read", name_of(entry.dtype)));
      }
    }
    if (dtypes.size() > 1) problem(mapping.sources[0].name, "has another type than those it is joined with");
  }
  const std::string embedding = mappings[0].sources[0].name;
  if (repeats_embedding(check.model, check.files, embedding)) used.insert("lm_head.weight");
  for (const auto& [name, entry] : check.files.tensors()) {
    if (used.contains(name) || is_hf_buffer(name)) continue;
    problem(name, name == "lm_head.weight" && check.model.tied
                      ? "differs from the word embeddings that config.json ties it to"
                      : "is in the files, but no part of the model");
  }
  if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
}

// Reads one of our tensors, keeping it for the several of theirs that come from it.
class OurTensors {
 public:
  OurTensors(const fs::path& checkpoint, const CheckpointInfo& info) : reader_(checkpoint), info_(info) {}

  std::vector<char>& get(const HfMapping& mapping, Dtype to) {
    if (current_ == mapping.name) return bytes_;
    const Dtype from = info_.tensors.at(mapping.name).dtype;
    std::vector<char> bytes(static_cast<size_t>(numel_of(mapping.shape) * size_of(from)));
    reader_.read({.name = mapping.name,
                  .dtype = from,
                  .shard = Shard::replicated(mapping.shape),
                  .data = bytes.data()});
    bytes_ = converted(std::move(bytes), from, to);
    current_ = mapping.name;
    return bytes_;
  }

 private:
  CheckpointReader reader_;
  const CheckpointInfo& info_;
  std::string current_;
  std::vector<char> bytes_;
};

void check_export(const CheckpointInfo& info, const std::vector<HfMapping>& mappings) {
  std::vector<Problem> problems;
  const std::string where = printable(info.path.string(), 4096);
  std::set<std::string> used;
  for (const HfMapping& mapping : mappings) {
    used.insert(mapping.name);
    const auto found = info.tensors.find(mapping.name);
    if (found == info.tensors.end()) {
      problems.push_back({.what = fmt::format("tensor \"{}\" is missing", mapping.name), .where = where});
    } else if (found->second.shape != mapping.shape || !is_convertible_float(found->second.dtype)) {
      problems.push_back(
          {.what = fmt::format("tensor \"{}\" is {} [{}], [{}] is needed", mapping.name,
                               name_of(found->second.dtype), fmt::join(found->second.shape, ", "),
                               fmt::join(mapping.shape, ", ")),
           .where = where});
    }
  }
  for (const auto& [name, tensor] : info.tensors) {
    const bool weight =
        name.starts_with("embedding.") || name.starts_with("decoder.") || name.starts_with("output_");
    if (weight && !used.contains(name)) {
      problems.push_back(
          {.what = fmt::format("tensor \"{}\" has no place in the model", printable(name)), .where = where});
    }
  }
  if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
}

void copy_tokenizer(const HfTokenizerFiles& files, const fs::path& to) {
  for (const auto& [name, file] : files) {
    write_text(to / name, read_text(file, {.kind = ExitCode::checkpoint}), ExitCode::checkpoint);
  }
}

// Where the folder's tokenizer lies, as Megatron-LM's settings say it.
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
  const HfModel model = model_of_checkpoint(info);
  const std::vector<HfMapping> mappings = hf_layout(model, hf_prefix(model.family));
  check_export(info, mappings);
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::vector<std::pair<const HfMapping*, size_t>> origins;
  for (const HfMapping& mapping : mappings) {
    for (size_t i = 0; i < mapping.sources.size(); ++i) {
      const Dtype dtype = request.dtype.value_or(info.tensors.at(mapping.name).dtype);
      tensors.push_back({mapping.sources[i].name, dtype, mapping.sources[i].shape});
      origins.emplace_back(&mapping, i);
      report.elements += numel_of(mapping.sources[i].shape);
    }
  }
  OurTensors ours(request.source, info);
  write_hf_files(directory, tensors, request.max_shard_bytes, [&](size_t i) {
    const auto& [mapping, source] = origins[i];
    return disassemble(*mapping, source, ours.get(*mapping, tensors[i].dtype), size_of(tensors[i].dtype));
  });
  json config = json::parse(hf_config_text(model, info.config, tensors[0].dtype));
  if (request.end_token) config["eos_token_id"] = *request.end_token;
  write_text(directory / "config.json", config.dump(2) + "\n", ExitCode::checkpoint);
  copy_tokenizer(request.tokenizer, directory);
  report.tensors = static_cast<int64_t>(tensors.size());
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
  const HfConfig config = parse_hf_config(read_text(config_path, {.kind = ExitCode::checkpoint}),
                                          printable(config_path.string(), 4096));
  const HfFiles files(request.source);
  const HfModel& model = config.model;
  const bool bare = files.has(hf_embedding_name(model.family));
  const std::vector<HfMapping> mappings = hf_layout(model, bare ? "" : hf_prefix(model.family));
  check_import({request, model, files}, mappings);
  json settings = json::parse(config.settings);
  settings.update(tokenizer_settings(request.source));
  SaveRequest save{.directory = request.destination, .iteration = 0, .config = settings.dump()};
  ConversionReport report;
  for (const HfMapping& mapping : mappings) {
    const Dtype own = files.tensors().at(mapping.sources[0].name)->dtype;
    const Dtype dtype = request.dtype.value_or(own);
    LocalTensor tensor{.name = mapping.name, .dtype = dtype, .shard = Shard::replicated(mapping.shape)};
    tensor.fetch = [&mapping, &files, dtype] {
      auto bytes = std::make_shared<std::vector<char>>(assemble(mapping, files, dtype));
      return std::shared_ptr<const void>(bytes, bytes->data());
    };
    save.tensors.push_back(std::move(tensor));
    report.elements += numel_of(mapping.shape);
  }
  NoPeers alone;
  report.result = save_checkpoint(save, alone);
  report.tensors = static_cast<int64_t>(mappings.size());
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
