#include <charconv>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/base/config/command_line.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/base/text_lines.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/inference_program.h"
#include "teratron/cli/logits_tensors.h"
#include "teratron/cli/run_job.h"
#include "teratron/generate/language_model.h"
#include "teratron/generate/loaded_model.h"
#include "teratron/hf/architecture.h"
#include "teratron/pipeline/executor.h"
#include "teratron/train/engine/engine_options.h"

namespace teratron {

namespace {

struct LogitsOptions {
  const Registry& registry;
  std::string input;
  std::string output;
  bool bert_embeddings = false;
};

// The ids of a line, separated by blanks or commas.
std::vector<int64_t> parse_ids(std::string_view line, const std::string& where, int64_t vocabulary) {
  std::vector<int64_t> ids;
  size_t position = 0;
  while ((position = line.find_first_not_of(" ,\t\r", position)) != std::string_view::npos) {
    const size_t end = std::min(line.find_first_of(" ,\t\r", position), line.size());
    const std::string_view word = line.substr(position, end - position);
    int64_t id = -1;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size() || id < 0 || id >= vocabulary) {
      throw data_error(
          {.what = fmt::format("'{}' is not a token id in [0, {})", printable(word, 40), vocabulary),
           .where = where,
           .fix = "Write one sequence of ids per line"});
    }
    ids.push_back(id);
    position = end;
  }
  return ids;
}

std::vector<std::vector<int64_t>> read_sequences(const std::string& path, const LanguageModel& model) {
  std::ifstream file = open_text(path, ExitCode::data);
  std::vector<std::vector<int64_t>> sequences;
  int64_t number = 0;
  for (std::string line; next_line(file, line, path);) {
    const std::string where = fmt::format("{}:{}", path, ++number);
    std::vector<int64_t> ids = parse_ids(line, where, model.vocabulary);
    if (ids.empty()) continue;
    if (static_cast<int64_t>(ids.size()) > model.max_positions) {
      throw data_error(
          {.what = fmt::format("{} tokens, but the model has {} positions", ids.size(), model.max_positions),
           .where = where,
           .fix = "Shorten the sequence"});
    }
    sequences.push_back(std::move(ids));
  }
  if (sequences.empty()) {
    throw data_error({.what = "the file has no token ids", .where = path, .fix = "Check --input"});
  }
  return sequences;
}

// A classifier's, [K]; undefined where there is no head.
at::Tensor logits_of_text(const LanguageModel& model, const std::vector<int64_t>& ids) {
  NamedTensors inputs_1S;
  for (const Inference::Input& input : model.inference.inputs)
    inputs_1S.set(input.name, at::full({1, std::ssize(ids)}, input.fill.value_or(0), at::kLong));
  inputs_1S.set("tokens", at::tensor(ids).unsqueeze(0));
  NamedTensors there;
  for (const auto& [name, values] : inputs_1S) there.set(name, values.to(model.device));
  const std::vector<InferenceOutput> outputs = outputs_of(model, model.inference.batch(there, {}));
  return outputs.empty() ? at::Tensor() : outputs.front().tensor[0].contiguous();
}

at::Tensor fp32_logits(const LanguageModel& model, const std::vector<int64_t>& ids) {
  if (model.inference.of_texts) return logits_of_text(model, ids);
  const at::Tensor logits_S1V = logits_of(model, ids);
  return logits_S1V.defined() ? logits_S1V.squeeze(1).to(at::kCPU, at::kFloat).contiguous() : logits_S1V;
}

// A model of texts has as many classes for each.
std::vector<SafetensorsWriter::Tensor> entries_of(const LanguageModel& model,
                                                  const std::vector<std::vector<int64_t>>& sequences,
                                                  const at::Tensor& first) {
  std::vector<SafetensorsWriter::Tensor> entries;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const std::vector<int64_t> of_tokens = {std::ssize(sequences[i]), model.vocabulary};
    entries.push_back({.name = fmt::format("logits.{}", i),
                       .dtype = Dtype::f32,
                       .shape = model.inference.of_texts ? first.sizes().vec() : of_tokens});
  }
  return entries;
}

// All ranks compute.
void write_logits(const LanguageModel& model, const std::vector<std::vector<int64_t>>& sequences,
                  const OutputChoice& choice) {
  std::optional<TemporaryPath> target;
  std::optional<SafetensorsWriter> writer;
  if (choice.writes) target.emplace(choice.path, ExitCode::config);
  for (const std::vector<int64_t>& ids : sequences) {
    const at::Tensor logits = fp32_logits(model, ids);
    if (!choice.writes) continue;
    if (!writer)
      writer.emplace(target->path(), entries_of(model, sequences, logits),
                     std::map<std::string, std::string>());
    writer->write(logits.const_data_ptr<float>(), logits.numel() * static_cast<int64_t>(sizeof(float)));
  }
  if (!choice.writes) return;
  writer->finish();
  target->commit();
}

LoadedModel load_model(const ParsedArguments& parsed, const Registry& registry, const Mesh& mesh) {
  LoadedModel loaded = load_for_inference(
      parsed, {.dtype = at::kFloat, .device = choose_device(parsed.args), .families = registry.families},
      mesh);
  // Relative positions have no last one.
  if (loaded.args.position_embedding_type == "relative")
    loaded.model.max_positions = std::numeric_limits<int64_t>::max();
  return loaded;
}

// All ranks compute; the first that has the head writes.
void run_rank(const ParsedArguments& parsed, const LogitsOptions& options, const Mesh& mesh) {
  const LoadedModel loaded = load_model(parsed, options.registry, mesh);
  if (mesh.group(Axis::pp).size > 1)
    connect_links(mesh, at::TensorOptions().dtype(loaded.model.dtype).device(loaded.model.device));
  const bool first = mesh.group(complement(Axis::pp)).rank == 0;
  const OutputChoice choice{options.output, options.bert_embeddings, loaded.model.has_head() && first};
  if (is_safetensors(options.input)) {
    const NamedTensors inputs = read_inputs(options.input, loaded.model);
    write_outputs(loaded.model, inputs, options.input, choice);
    const int64_t rows = sequences_in(loaded.model, inputs);
    if (choice.writes) print("{}: outputs for {} sequences", printable(options.output, 4096), rows);
    return;
  }
  if (options.bert_embeddings) {
    throw config_error({.what = "embeddings need the padding of each text",
                        .where = "--output-bert-embeddings",
                        .fix = "Give --input a safetensors file with tokens and padding_mask"});
  }
  const std::optional<SourceOptions>& source = loaded.model.source;
  const auto& inputs = loaded.model.inference.inputs;
  if (source || (!inputs.empty() && inputs.front().name != loaded.model.text.tokens)) {
    throw config_error({.what = fmt::format("the model takes {} and more, not one sequence",
                                            source ? source->tokens : inputs.front().name),
                        .where = "--input",
                        .fix = "Give a safetensors file with the tensors of the model"});
  }
  const auto sequences = read_sequences(options.input, loaded.model);
  write_logits(loaded.model, sequences, choice);
  if (choice.writes) print("{}: logits of {} sequences", printable(options.output, 4096), sequences.size());
}

}  // namespace

int logits_command(std::span<const std::string> args, const Registry& registry) {
  const Program program = inference_program("logits", {});
  LogitsOptions options{.registry = registry};
  Arguments defaults;
  CommandLine line = {
      .name = "teratron logits",
      .example = "teratron logits --hf DIR --input ids.txt --output logits.safetensors",
      .usage = "(--load DIR | --hf DIR) --input FILE --output FILE.safetensors [FLAGS]",
      .summary = "Compute the logits of token ids in fp32.",
      .fields = {bound_field("input", &options.input,
                             "Text, one sequence of token ids per line; or safetensors, int64 [B, S]",
                             {.required = true}),
                 bound_field("output", &options.output, "Safetensors file to write", {.required = true}),
                 bound_field("output_bert_embeddings", &options.bert_embeddings,
                             "Write the mean hidden state of each text's inner tokens instead, [B, H]")},
      .others = OtherArguments::collected,
      .main_flags = {"--load", "--hf", "--input", "--output", "--output-bert-embeddings", "--lora",
                     "--ckpt-step", "--tensor-model-parallel-size", "--pipeline-model-parallel-size",
                     "--context-parallel-size", "--device", "--config-file"}};
  for (const Field& field : arguments_schema().fields()) {
    if (is_for(field, program.names)) line.collected.push_back(bound_setting(field.name, &defaults));
  }
  const std::optional<std::vector<std::string>> flags = read_command(line, args);
  if (!flags) return 0;
  const ParsedArguments parsed = parse_arguments(program, *flags, {.architecture = architecture_settings});
  start_inference(parsed);
  run_context_parallel(parsed, [&](const Mesh& mesh) { run_rank(parsed, options, mesh); });
  return 0;
}

}  // namespace teratron
