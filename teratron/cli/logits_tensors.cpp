#include "teratron/cli/logits_tensors.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include "teratron/ckpt/safetensors.h"

namespace teratron {

namespace {

using Problems = std::vector<Problem>;

// Items may be left out where there are sequences without any.
bool is_optional(const Inference::Input& input, const Inference& inference) {
  return input.fill || (!input.item.empty() && inference.inputs.size() > 1);
}

std::string names_of(const Inference& inference) {
  std::vector<std::string> names;
  for (const Inference::Input& input : inference.inputs)
    names.push_back(input.name + (is_optional(input, inference) ? " (optional)" : ""));
  return fmt::format("{}", fmt::join(names, ", "));
}

// Malformed input is data, not a checkpoint.
SafetensorsFile open_input(const std::string& path) {
  try {
    return SafetensorsFile(path);
  } catch (const UserError& error) {
    throw UserError(ExitCode::data, error.problems());
  }
}

bool is_valid(const SafetensorsEntry& entry, const LanguageModel& model, Problems& problems) {
  const auto problem = [&](std::string what, std::string fix) {
    problems.push_back({.what = std::move(what), .where = entry.name, .fix = std::move(fix)});
    return false;
  };
  if (entry.dtype != Dtype::i64)
    return problem(fmt::format("the dtype is {}", name_of(entry.dtype)), "Write it as int64");
  if (entry.shape.size() != 2 || entry.shape[0] == 0 || entry.shape[1] == 0)
    return problem(fmt::format("the shape is [{}]", fmt::join(entry.shape, ", ")),
                   "Write [B, S]: sequences of one length, padded if need be");
  if (entry.shape[1] <= model.max_positions) return true;
  return problem(
      fmt::format("{} tokens per row, but the model has {} positions", entry.shape[1], model.max_positions),
      "Shorten the sequences");
}

bool is_valid_item(const SafetensorsEntry& entry, const Inference::Input& input, Problems& problems) {
  const auto problem = [&](std::string what, std::string fix) {
    problems.push_back({.what = std::move(what), .where = entry.name, .fix = std::move(fix)});
    return false;
  };
  if (entry.dtype != Dtype::f32)
    return problem(fmt::format("the dtype is {}", name_of(entry.dtype)), "Write it as float32");
  if (std::ssize(entry.shape) == std::ssize(input.item) + 1 &&
      std::equal(input.item.begin(), input.item.end(), entry.shape.begin() + 1))
    return true;
  return problem(fmt::format("the shape is [{}], but the model takes [any number, {}]",
                             fmt::join(entry.shape, ", "), fmt::join(input.item, ", ")),
                 "Write images of the model's size");
}

at::Tensor read_tensor(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  at::Tensor values = at::empty(entry.shape, entry.dtype == Dtype::f32 ? at::kFloat : at::kLong);
  file.read(entry, 0, entry.bytes, values.mutable_data_ptr());
  return values;
}

void check_range(const at::Tensor& values_BS, const Inference::Input& input, Problems& problems) {
  at::Tensor is_wrong = values_BS.lt(0).logical_or(values_BS.ge(input.limit));
  if (input.besides) is_wrong = is_wrong.logical_and(values_BS.ne(*input.besides));
  const at::Tensor wrong = is_wrong.nonzero();
  if (wrong.size(0) == 0) return;
  const int64_t row = wrong[0][0].item<int64_t>(), column = wrong[0][1].item<int64_t>();
  problems.push_back(
      {.what = fmt::format("{} at [{}, {}] is not in [0, {}) ({} such values)",
                           values_BS[row][column].item<int64_t>(), row, column, input.limit, wrong.size(0)),
       .where = input.name,
       .fix = "Use the model's tokenizer"});
}

struct InputShape {
  std::string tensor, sequence;
  std::vector<int64_t> sizes;
};

// The tensor that a shape contradicts, or null.
const InputShape* contradicted(const std::vector<InputShape>& shapes, const InputShape& own) {
  for (const InputShape& other : shapes) {
    const bool same = other.sequence == own.sequence;
    if (other.sizes[0] != own.sizes[0] || (same && other.sizes != own.sizes)) return &other;
  }
  return nullptr;
}

const std::vector<int64_t>& sizes_of(const std::vector<InputShape>& shapes, const std::string& sequence) {
  const auto found = std::ranges::find(shapes, sequence, &InputShape::sequence);
  TERATRON_ASSERT(found != shapes.end(), "no tensor of sequence {}", sequence);
  return found->sizes;
}

}  // namespace

bool is_safetensors(const std::string& path) {
  if (path.ends_with(".safetensors")) return true;
  const File file = File::open(path, ExitCode::data);
  char start[9] = {};  // the length of the header, which is a JSON object
  return file.read_some(start, sizeof start, 0) == sizeof start && start[8] == '{';
}

NamedTensors read_inputs(const std::string& path, const LanguageModel& model) {
  const SafetensorsFile file = open_input(path);
  const std::string takes = fmt::format("The model takes {}", names_of(model.inference));
  Problems problems;
  NamedTensors inputs;
  std::vector<std::string> known;
  std::vector<InputShape> shapes;
  for (const Inference::Input& input : model.inference.inputs) {
    known.push_back(input.name);
    const SafetensorsEntry* const entry = file.find(input.name);
    if (entry == nullptr) {
      if (!is_optional(input, model.inference))
        problems.push_back({.what = fmt::format("there is no tensor {}", input.name), .fix = takes});
      continue;
    }
    if (!input.item.empty()) {
      if (is_valid_item(*entry, input, problems)) inputs.set(input.name, read_tensor(file, *entry));
      continue;
    }
    if (!is_valid(*entry, model, problems)) continue;
    const InputShape own{input.name, input.sequence, entry->shape};
    if (const InputShape* const other = contradicted(shapes, own)) {
      problems.push_back(
          {.what = fmt::format("the shape is [{}], but that of {} is [{}]", fmt::join(entry->shape, ", "),
                               other->tensor, fmt::join(other->sizes, ", ")),
           .where = entry->name,
           .fix = "Write all tensors as [B, S]"});
      continue;
    }
    shapes.push_back(own);
    inputs.set(input.name, read_tensor(file, *entry));
    check_range(inputs[input.name], input, problems);
  }
  for (const SafetensorsEntry& entry : file.entries()) {
    if (std::ranges::find(known, entry.name) != known.end()) continue;
    problems.push_back(
        {.what = fmt::format("the model has no input {}", printable(entry.name)), .fix = takes});
  }
  for (Problem& problem : problems)
    problem.where = problem.where.empty() ? path : fmt::format("{}:{}", path, problem.where);
  if (!problems.empty()) throw UserError(ExitCode::data, std::move(problems));
  for (const Inference::Input& input : model.inference.inputs) {
    if (!inputs[input.name].defined() && input.item.empty())
      inputs.set(input.name, at::full(sizes_of(shapes, input.sequence), *input.fill, at::kLong));
  }
  return inputs;
}

namespace {

// Rows that are computed at once.
constexpr int64_t tokens_at_once = 2048;

// Streams the first output, which may be large, and keeps the others to the end.
class OutputFile {
 public:
  OutputFile(const std::string& path, int64_t rows) : target_(path, ExitCode::config), rows_(rows) {}

  void add(const std::vector<InferenceOutput>& outputs) {
    if (!writer_) declare(outputs);
    write(outputs[0].tensor);
    for (size_t i = 1; i < outputs.size(); ++i) kept_[i - 1].push_back(outputs[i].tensor);
  }
  void finish() {
    for (const std::vector<at::Tensor>& parts : kept_) {
      for (const at::Tensor& part : parts) write(part);
    }
    writer_->finish();
    target_.commit();
  }

 private:
  void declare(const std::vector<InferenceOutput>& outputs) {
    std::vector<SafetensorsWriter::Tensor> entries;
    for (const InferenceOutput& output : outputs) {
      entries.push_back({.name = output.name, .dtype = Dtype::f32, .shape = output.tensor.sizes().vec()});
      entries.back().shape[0] = rows_;
    }
    writer_.emplace(target_.path(), entries, std::map<std::string, std::string>());
    kept_.resize(outputs.size() - 1);
  }
  void write(const at::Tensor& values) {
    writer_->write(values.const_data_ptr<float>(), values.numel() * static_cast<int64_t>(sizeof(float)));
  }

  TemporaryPath target_;
  int64_t rows_;
  std::optional<SafetensorsWriter> writer_;
  std::vector<std::vector<at::Tensor>> kept_;
};

std::vector<InferenceOutput> embeddings_of(const LanguageModel& model, const MicroBatch& batch) {
  const at::Tensor embeddings_BH = text_embeddings_of(model, batch);
  if (!model.has_head()) return {};
  if (!embeddings_BH.defined()) {
    throw config_error({.what = "the model has no embeddings of texts",
                        .where = "--output-bert-embeddings",
                        .fix = "Load a BERT with a binary head, or leave the flag out"});
  }
  return {{.name = "embeddings", .tensor = embeddings_BH}};
}

}  // namespace

namespace {

std::vector<NamedTensors> parts_of(const NamedTensors& inputs, int64_t rows, int64_t at_once) {
  std::vector<NamedTensors> parts;
  for (int64_t row = 0; row < rows; row += at_once) {
    NamedTensors& part = parts.emplace_back();
    for (const auto& [name, values_BS] : inputs)
      part.set(name, values_BS.narrow(0, row, std::min(at_once, rows - row)));
  }
  return parts;
}

}  // namespace

int64_t sequences_in(const LanguageModel& model, const NamedTensors& inputs) {
  return inputs[model.inference.inputs.front().name].size(0);
}

void write_outputs(const LanguageModel& model, const NamedTensors& inputs, const std::string& where,
                   const OutputChoice& choice) {
  const int64_t rows = sequences_in(model, inputs);
  int64_t length = 0;
  for (const Inference::Input& input : model.inference.inputs) {
    if (input.item.empty()) length = std::max(length, inputs[input.name].size(1));
  }
  if (length == 0) length = model.max_positions;  // of items alone
  const int64_t at_once = std::max<int64_t>(1, tokens_at_once / length);
  const auto& divide = model.inference.divide;
  const std::vector<NamedTensors> parts =
      divide ? divide(inputs, at_once, where) : parts_of(inputs, rows, at_once);
  std::optional<OutputFile> file;
  if (choice.writes) file.emplace(choice.path, rows);
  for (const NamedTensors& host : parts) {
    NamedTensors part;
    for (const auto& [name, values] : host) part.set(name, values.to(model.device));
    const MicroBatch batch = model.inference.batch(part, where);
    const auto outputs = choice.embeddings ? embeddings_of(model, batch) : outputs_of(model, batch);
    if (file) file->add(outputs);
  }
  if (file) file->finish();
}

}  // namespace teratron
