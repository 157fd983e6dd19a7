#include "teratron/hf/convert.h"

#include <cstring>
#include <memory>
#include <system_error>

#include "teratron/base/file.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/hf/float_convert.h"
#include "teratron/hf/hf_checkpoint.h"
#include "teratron/hf/placement.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::vector<char> buffer_for(const std::vector<int64_t>& shape, Dtype dtype) {
  return std::vector<char>(static_cast<size_t>(*checked_numel(shape) * size_of(dtype)));
}

// Copies the rows of a source out of our tensor.
void copy_source(const HfTensor& tensor, size_t source, const char* ours, char* theirs, int64_t bytes) {
  const HfSource& layout = tensor.sources[source];
  const int64_t columns = tensor.columns();
  const auto copy = [&](int64_t our_element, int64_t their_element, int64_t count) {
    std::memcpy(theirs + their_element * bytes, ours + our_element * bytes,
                static_cast<size_t>(count * bytes));
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

void check_empty(const fs::path& destination) {
  std::error_code ignored;
  if (!fs::exists(destination, ignored) || fs::is_empty(destination, ignored)) return;
  throw config_error({.what = "the folder is not empty",
                      .where = printable(destination.string(), 4096),
                      .fix = "Give --to-hf or --hf-out a new folder"});
}

// What is written: each tensor's sources, one after another.
struct ExportPlan {
  HfModel model;
  std::vector<HfTensor> tensors;
  std::vector<SafetensorsWriter::Tensor> outputs;
};

ExportPlan plan_export(const CheckpointInfo& info, std::optional<Dtype> dtype) {
  ExportPlan plan{hf_model_of(info), {}, {}};
  plan.tensors = hf_tensors(plan.model, info.tensors.size());
  Unplaced unplaced{info.tensors, plan.model.where, "but the settings require"};
  for (const HfTensor& tensor : plan.tensors) {
    const std::optional<Dtype> saved = unplaced.place(tensor.name, tensor.shape);
    for (const HfSource& source : tensor.sources)
      plan.outputs.push_back({source.name, dtype.value_or(saved.value_or(Dtype::f32)), source.shape});
  }
  unplaced.finish([](const std::string& name) { return name.starts_with("optimizer."); });
  return plan;
}

void write_tokenizer(const HfTokenizer& tokenizer, const fs::path& directory, json& config) {
  for (const auto& [name, file] : tokenizer.files)
    write_text(directory / name, read_text(file, {.kind = ExitCode::checkpoint}), ExitCode::checkpoint);
  for (const auto& [name, text] : tokenizer.contents)
    write_text(directory / name, text, ExitCode::checkpoint);
  if (!tokenizer.missing.empty()) return;
  // Where a key is missing, transformers takes the id of the first published model of the type.
  const auto set = [&config](const char* key, const std::optional<int32_t>& id) {
    if (id) config[key] = *id;
    if (!id && !config.contains(key)) config[key] = nullptr;
  };
  set("bos_token_id", tokenizer.special.bos);
  set("eos_token_id", tokenizer.special.eod);
  set("pad_token_id", tokenizer.special.pad);
}

void write_export(const HfExport& request, const fs::path& directory, ConversionReport& report) {
  const CheckpointInfo info = open_checkpoint(request.source);
  const auto [model, tensors, outputs] = plan_export(info, request.dtype);
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
    copy_source(*tensor, source++, ours.data(), theirs.data(), size_of(outputs[i].dtype));
    return theirs;
  });
  json config = hf_config(model, outputs[0].dtype);
  write_tokenizer(request.tokenizer, directory, config);
  write_text(directory / "config.json", config.dump(2) + "\n", ExitCode::checkpoint);
  report.tensors = static_cast<int64_t>(outputs.size());
  report.notices = model.notices;
}

}  // namespace

ConversionReport import_hf(const HfImport& request) {
  std::error_code ignored;
  if (!fs::is_directory(request.source, ignored)) reject_pickled(request.source);
  const HfCheckpoint source(request.source);
  SaveRequest save{.directory = request.destination, .config = source.info().config, .writers = 1};
  ConversionReport report{.tensors = static_cast<int64_t>(source.tensors().size())};
  for (const HfTensor& tensor : source.tensors()) {
    const Dtype from = source.info().tensors.at(tensor.name).dtype, to = request.dtype.value_or(from);
    const auto read = [&source, &tensor, from, to](int64_t begin, int64_t end) {
      std::vector<char> bytes(static_cast<size_t>((end - begin) * size_of(from)));
      source.read({tensor.name, from, Shard::replicated(tensor.shape), begin, end, bytes.data()});
      const auto result = std::make_shared<std::vector<char>>(convert_floats(std::move(bytes), from, to));
      return std::shared_ptr<const void>(result, result->data());
    };
    const int64_t elements = *checked_numel(tensor.shape);
    save.tensors.push_back({.name = tensor.name, .dtype = to, .shard = Shard::replicated(tensor.shape)});
    // Transposed tensors are read as a whole, however little of them is asked for.
    if (tensor.sources[0].transposed) {
      save.tensors.back().fetch = [read, elements] { return read(0, elements); };
    } else {
      save.tensors.back().read = read;
    }
    report.elements += elements;
  }
  SingleHostGroup alone;
  report.result = save_checkpoint(save, alone).path;
  return report;
}

void check_export(const CheckpointInfo& info, const fs::path& destination) {
  check_empty(destination);
  plan_export(info, std::nullopt);
}

ConversionReport export_hf(const HfExport& request) {
  std::error_code ignored;
  check_empty(request.destination);
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
