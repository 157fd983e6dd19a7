#include "teratron/hf/convert.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <system_error>

#include "teratron/base/file.h"
#include "teratron/base/partial_folder.h"
#include "teratron/ckpt/directory.h"
#include "teratron/hf/byte_progress.h"
#include "teratron/hf/float_convert.h"
#include "teratron/hf/hf_checkpoint.h"
#include "teratron/hf/placement.h"
#include "teratron/hf/transpose.h"
#include "teratron/tokenizer/decoder_start.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t block_bytes = int64_t{16} << 20;

void check_empty(const fs::path& destination) {
  std::error_code ignored;
  if (!fs::exists(destination, ignored) || fs::is_empty(destination, ignored)) return;
  throw config_error({.what = "the folder is not empty",
                      .where = printable(destination.string(), 4096),
                      .fix = "Give --to-hf or --hf-out a new folder"});
}

// What is written: each tensor's sources, one after another.
struct ExportPlan {
  struct Origin {
    size_t source;
    std::vector<size_t> tensors;  // several: those of all experts, one after another
  };

  HfModel model;
  std::vector<HfTensor> tensors;
  std::vector<SafetensorsWriter::Tensor> outputs;
  std::vector<Origin> origins;  // of the outputs

  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& output : outputs) sum += *checked_numel(output.shape) * size_of(output.dtype);
    return sum;
  }
};

// A source as files have it, which may be that of all experts.
HfSource written_source(const HfModel& model, const HfTensor& tensor, size_t number) {
  HfSource source = tensor.sources[number];
  for (const HfFusedExperts& fused : model.family->fused_experts) {
    if (!fused.written) continue;
    const std::string_view part = fused.parts[0];
    const size_t sign = part.find('#');
    const std::string_view before = part.substr(0, sign), after = part.substr(sign + 1);
    const size_t begin = source.name.rfind(before);
    if (begin == source.name.npos || !source.name.ends_with(after)) continue;
    const std::string number_text =
        source.name.substr(begin + before.size(), source.name.size() - after.size() - begin - before.size());
    if (number_text.empty() || number_text.find_first_not_of("0123456789") != number_text.npos) continue;
    source.name = source.name.substr(0, begin) + std::string(fused.end);
    source.shape.insert(source.shape.begin(), hf_size(model.settings, "num_experts"));
    break;
  }
  return source;
}

ExportPlan plan_export(const CheckpointInfo& info, const HfExport& request) {
  ExportPlan plan{hf_model_of(info), {}, {}, {}};
  plan.tensors = hf_tensors(plan.model, info.tensors.size());
  Unplaced unplaced{info.tensors, plan.model.where, "but the settings require"};
  std::map<std::string, size_t> by_name;
  for (size_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
    const HfTensor& ours = plan.tensors[tensor];
    const auto found = info.tensors.find(ours.name);
    const std::optional<Dtype> saved =
        ours.repeats ? (found == info.tensors.end() ? std::nullopt : std::optional(found->second.dtype))
                     : unplaced.place(ours.name, ours.shape);
    for (size_t source = 0; source < ours.sources.size(); ++source) {
      const HfSource written = written_source(plan.model, ours, source);
      const auto [joined, is_new] = by_name.emplace(written.name, plan.outputs.size());
      if (!is_new) {
        plan.origins[joined->second].tensors.push_back(tensor);
        continue;
      }
      const auto own = request.dtype_of.find(written.name);
      const Dtype dtype = ours.f32 ? Dtype::f32
                          : own != request.dtype_of.end()
                              ? own->second
                              : request.dtype.value_or(saved.value_or(Dtype::f32));
      plan.outputs.push_back({written.name, dtype, written.shape});
      plan.origins.push_back({source, {tensor}});
    }
  }
  unplaced.finish([](const std::string& name) { return name.starts_with("optimizer."); });
  return plan;
}

// Writes the tensors of a plan in blocks. What is the same on both sides is read in blocks, too; what is cut
// or transposed is taken out of the whole tensor, which stays until the next one.
class ExportStream {
 public:
  ExportStream(const CheckpointSource& source, const ExportPlan& plan)
      : source_(source), plan_(plan), progress_("written", plan.bytes()) {}

  void write(size_t output, const AppendBytes& append) {
    const auto& [number, tensors] = plan_.origins[output];
    for (const size_t i : tensors) {
      const HfTensor& tensor = plan_.tensors[i];
      const std::vector<int64_t>& shape = tensor.stacked ? tensor.shape : tensor.sources[number].shape;
      write_source(tensor, number, {plan_.outputs[output].dtype, shape, append});
    }
  }

 private:
  struct Written {
    Dtype to;
    const std::vector<int64_t>& shape;
    const AppendBytes& append;
  };

  void write_source(const HfTensor& tensor, size_t number, const Written& written) {
    const auto& [to, shape, append] = written;
    const Dtype saved = source_.info().tensors.at(tensor.name).dtype;
    const bool is_copy = tensor.is_copy() || tensor.stacked;
    if (!is_copy && loaded_ != &tensor) load(tensor, saved);
    const int64_t row = *checked_numel(shape) / std::max<int64_t>(shape[0], 1);
    const int64_t widest = std::max(size_of(saved), size_of(to));
    const int64_t step = std::max<int64_t>(1, block_bytes / std::max<int64_t>(1, row * widest));
    for (int64_t begin = 0; begin < shape[0]; begin += step) {
      const int64_t end = std::min(begin + step, shape[0]), count = (end - begin) * row;
      block_.resize(std::max(block_.size(), static_cast<size_t>(count * widest)));
      if (is_copy) {
        source_.read(
            {tensor.name, saved, Shard::replicated(tensor.shape), begin * row, end * row, block_.data()});
      } else {
        gather(tensor, number, {begin, end}, size_of(saved));
      }
      convert_floats(block_.data(), count, saved, to);
      append(block_.data(), count * size_of(to));
      progress_.add(count * size_of(to));
    }
  }

  struct Rows {
    int64_t begin, end;
  };

  void load(const HfTensor& tensor, Dtype saved) {
    const int64_t elements = *checked_numel(tensor.shape);
    whole_ = nullptr;  // before the next is allocated
    loaded_ = &tensor;
    whole_ = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(elements * size_of(saved)));
    source_.read({tensor.name, saved, Shard::replicated(tensor.shape), 0, elements, whole_.get()});
  }

  // Rows of a file's tensor.
  void gather(const HfTensor& tensor, size_t number, Rows rows, int64_t element) {
    const HfSource& theirs = tensor.sources[number];
    const int64_t columns = tensor.columns();
    for (const RowSlice& slice : tensor.slices()) {
      if (slice.source != number) continue;
      const char* const ours = whole_.get() + slice.our_row * columns * element;
      if (theirs.transposed) {
        transpose(ours + rows.begin * element, block_.data() + slice.row * element,
                  {.rows = slice.rows,
                   .columns = rows.end - rows.begin,
                   .in_stride = columns,
                   .out_stride = theirs.shape[1]},
                  element);
        continue;
      }
      const int64_t begin = std::max(rows.begin, slice.row), end = std::min(rows.end, slice.row + slice.rows);
      if (begin < end)
        std::memcpy(block_.data() + (begin - rows.begin) * columns * element,
                    ours + (begin - slice.row) * columns * element,
                    static_cast<size_t>((end - begin) * columns * element));
    }
  }

  const CheckpointSource& source_;
  const ExportPlan& plan_;
  ByteProgress progress_;
  std::vector<char> block_;
  std::unique_ptr<char[]> whole_;
  const HfTensor* loaded_ = nullptr;  // the tensor that is there
};

// `saved`: what the folder said from which the model was imported.
void write_tokenizer(const HfTokenizer& tokenizer, const ConfiguredTokens& saved, const fs::path& directory,
                     const HfFamily& family, json& config) {
  const ConfiguredTokens& configured = tokenizer.configured.empty() ? saved : tokenizer.configured;
  for (const auto& [name, file] : tokenizer.files)
    write_text(directory / name, read_text(file, {.kind = ExitCode::checkpoint}), ExitCode::checkpoint);
  for (const auto& [name, text] : tokenizer.contents)
    write_text(directory / name, text, ExitCode::checkpoint);
  const auto& [ends, eos, bos, pad, start] = configured;
  const bool has_tokenizer = tokenizer.missing.empty();
  const std::vector<int32_t>& ids = (has_tokenizer && !eos.empty()) || ends.empty() ? eos : ends;
  if (!ids.empty()) config["eos_token_id"] = ids;
  if (ids.size() == 1) config["eos_token_id"] = ids.front();
  if (bos) config["bos_token_id"] = *bos;
  if (pad) config["pad_token_id"] = *pad;
  if (family.has_decoder_start && start) config["decoder_start_token_id"] = *start;
  if (!has_tokenizer) return;
  // Where a key is missing, transformers takes the id of the first published model of the type.
  const auto set = [&config](const char* key, const std::optional<int32_t>& id) {
    if (id) config[key] = *id;
    if (!id && !config.contains(key)) config[key] = nullptr;
  };
  if (!bos) set("bos_token_id", tokenizer.special.bos);
  if (ids.empty()) set("eos_token_id", tokenizer.special.eod);
  if (!pad) set("pad_token_id", tokenizer.special.pad);
  if (family.has_decoder_start && !start) set("decoder_start_token_id", decoder_start(tokenizer.special));
}

// transformers asks the language model of a model that reads images, too.
void copy_tokens(const HfFamily& family, json& config) {
  for (const HfPart& part : family.parts) {
    if (part.object != "text_config") continue;
    for (const char* const key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      if (config.contains(key)) config[part.object][key] = json(config[key]);
    }
  }
}

// What an imported checkpoint keeps of them, where the tokenizer's folder has none.
void write_processor(const std::string& settings, const HfTokenizer& tokenizer, const fs::path& directory) {
  const json saved = json::parse(settings).value("hf_processor", json::object());
  for (const auto& [name, text] : saved.items()) {
    const bool is_name = name.find('/') == name.npos && text.is_string();
    if (is_name && !tokenizer.files.contains(name) && !tokenizer.contents.contains(name))
      write_text(directory / name, text.get<std::string>(), ExitCode::checkpoint);
  }
}

void write_export(const CheckpointSource& source, const HfExport& request, const fs::path& directory,
                  ConversionReport& report) {
  const ExportPlan plan = plan_export(source.info(), request);
  {
    ExportStream stream(source, plan);
    write_sharded_weights(directory, plan.outputs, request.shards,
                          [&](size_t i, const AppendBytes& append) { stream.write(i, append); });
  }
  json config = hf_config(plan.model, plan.outputs[0].dtype);
  write_tokenizer(request.tokenizer, saved_configured_tokens(source.info().config), directory,
                  *plan.model.family, config);
  copy_tokens(*plan.model.family, config);
  write_processor(source.info().config, request.tokenizer, directory);
  write_text(directory / "config.json", config.dump(2) + "\n", ExitCode::checkpoint);
  report.tensors = static_cast<int64_t>(plan.outputs.size());
  for (const auto& output : plan.outputs) report.elements += *checked_numel(output.shape);
  report.notices = plan.model.notices;
}

bool is_optimizer(const std::string& name) {
  return name.starts_with("optimizer.");
}

LocalTensor tensor_to_save(const CheckpointSource& source, const std::string& name, Dtype to,
                           ByteProgress& progress) {
  const auto& [from, shape] = source.info().tensors.at(name);
  LocalTensor tensor{.name = name, .dtype = to, .shard = Shard::replicated(shape)};
  const auto read = [&source, &progress, name, from = from, to, shard = tensor.shard](int64_t begin,
                                                                                      int64_t end) {
    const int64_t count = end - begin, bytes = count * std::max(size_of(from), size_of(to));
    const auto values = std::make_shared_for_overwrite<char[]>(static_cast<size_t>(bytes));
    source.read({name, from, shard, begin, end, values.get()});
    convert_floats(values.get(), count, from, to);
    progress.add(count * size_of(from));
    return std::shared_ptr<const void>(values, values.get());
  };
  if (source.reads_in_parts(name)) {
    tensor.read = read;
  } else {
    tensor.fetch = [read, elements = *checked_numel(shape)] { return read(0, elements); };
  }
  return tensor;
}

}  // namespace

ConversionReport import_checkpoint(const CheckpointSource& source, const CheckpointImport& request) {
  const CheckpointInfo& info = source.info();
  SaveRequest save{.directory = request.destination,
                   .iteration = info.iteration,
                   .config = info.config,
                   .state = info.state};
  ConversionReport report{.tensors = static_cast<int64_t>(info.tensors.size())};
  ByteProgress progress("converted", info.bytes);
  for (const auto& [name, tensor] : info.tensors) {
    const Dtype to = is_optimizer(name) ? Dtype::f32 : request.dtype.value_or(tensor.dtype);
    save.tensors.push_back(tensor_to_save(source, name, to, progress));
    // Whole tensors are in memory one at a time.
    if (!source.reads_in_parts(name)) save.writers = 1;
    report.elements += *checked_numel(tensor.shape);
    report.can_continue = report.can_continue || is_optimizer(name);
  }
  SingleHostGroup alone;
  report.result = save_checkpoint(save, alone).path;
  return report;
}

ConversionReport import_hf(const fs::path& folder, const CheckpointImport& request) {
  return import_checkpoint(HfCheckpoint(folder), request);
}

void check_export(const CheckpointInfo& info, const fs::path& destination) {
  check_empty(destination);
  plan_export(info, {});
}

ConversionReport export_hf(const CheckpointSource& source, const HfExport& request) {
  check_empty(request.destination);
  PartialFolder folder(request.destination);
  ConversionReport report;
  write_export(source, request, folder.path(), report);
  report.result = folder.commit();
  return report;
}

}  // namespace teratron
