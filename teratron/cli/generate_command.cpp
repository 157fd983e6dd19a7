#include "teratron/cli/generate_command.h"

#include <fstream>
#include <iostream>
#include <optional>
#include <set>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/cli/job.h"
#include "teratron/generate/generator.h"
#include "teratron/generate/loaded_model.h"
#include "teratron/hf/architecture.h"
#include "teratron/models/precision.h"
#include "teratron/telemetry/report.h"
#include "teratron/telemetry/sinks.h"
#include "teratron/tokenizer/tokenizer.h"
#include "teratron/train/engine_options.h"

namespace teratron {

namespace {

std::vector<std::string> lines_of(std::istream& input) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(input, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> read_prompts(const Arguments& args, int64_t ranks) {
  if (!args.prompt.empty()) return args.prompt;
  if (!args.sample_input_file && ranks > 1) {
    throw config_error({.what = "the ranks of a job have no standard input to read prompts from",
                        .where = "--prompt",
                        .fix = "Give --prompt or --sample-input-file"});
  }
  if (!args.sample_input_file) return lines_of(std::cin);
  std::ifstream file(*args.sample_input_file);
  if (!file) {
    throw config_error({.what = "the file of prompts cannot be read",
                        .where = *args.sample_input_file,
                        .fix = "Check --sample-input-file"});
  }
  return lines_of(file);
}

GenerationOptions generation_options(const Arguments& args, const Tokenizer& tokenizer) {
  GenerationOptions options{.sampling = {.temperature = args.temperature,
                                         .top_k = args.greedy ? 1 : args.top_k,
                                         .top_p = args.top_p,
                                         .seed = static_cast<uint64_t>(args.seed)},
                            .end_token = tokenizer.special().eod.value_or(-1)};
  check(options.sampling);
  return options;
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<int32_t> ids;
  tokenizer.encode(prompt, ids);
  if (ids.empty()) {
    throw config_error(
        {.what = "the prompt has no tokens", .where = "--prompt", .fix = "Write at least a word"});
  }
  return ids;
}

// The text that `next` adds to that of `prompt`, with the blank that some tokenizers put between two ids.
std::string continuation(const Tokenizer& tokenizer, std::vector<int32_t> prompt,
                         const std::vector<int32_t>& next) {
  const size_t known = tokenizer.decode(prompt).size();
  prompt.insert(prompt.end(), next.begin(), next.end());
  return tokenizer.decode(prompt).substr(known);
}

// Where texts go: the terminal, a file, a run's log.
class Texts {
 public:
  explicit Texts(const Arguments& args) {
    if (args.sample_output_file) file_.emplace(*args.sample_output_file, ExitCode::config);
    if (args.run_dir) hub_.add_background("metrics.jsonl", jsonl_sink(*args.run_dir + "/metrics.jsonl"));
  }
  /// `line` goes to the file.
  void add(const SampleText& sample, const std::string& line) {
    print("{}{}", sample.prompt, sample.text);
    print("");
    if (file_) file_->write(line + "\n");
    hub_.emit({.wall_time = wall_clock(), .what = sample});
  }
  void finish() {
    if (file_) file_->commit();
    hub_.flush();
  }

 private:
  std::optional<AtomicFile> file_;
  MetricsHub hub_;
};

// Without a prompt a text begins where a document does: after the end of another.
std::vector<int32_t> nothing(const Tokenizer& tokenizer) {
  const SpecialTokens& special = tokenizer.special();
  const std::optional<int32_t> start = special.eod ? special.eod : special.bos;
  if (start) return {*start};
  throw config_error({.what = "the tokenizer has no token that begins a document",
                      .where = "--num-samples",
                      .fix = "Give a --prompt"});
}

// As Megatron-LM writes texts without a prompt.
std::string json_line(const std::string& text, size_t length, bool finished) {
  const nlohmann::ordered_json line = {{"text", text}, {"length", length}, {"finished", finished}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// What texts begin with: as shown and as ids.
struct Start {
  std::string text;
  std::vector<int32_t> ids;
};

std::vector<Start> starts_of(const Arguments& args, const Tokenizer& tokenizer, int64_t ranks) {
  if (args.num_samples > 0 && (!args.prompt.empty() || args.sample_input_file)) {
    throw config_error({.what = "--num-samples asks for texts without a prompt, but prompts are given",
                        .where = "--num-samples",
                        .fix = "Give one of them"});
  }
  if (args.num_samples > 0) return std::vector<Start>(args.num_samples, {"", nothing(tokenizer)});
  std::vector<Start> starts;
  for (const std::string& prompt : read_prompts(args, ranks))
    starts.push_back({prompt, encode_prompt(tokenizer, prompt)});
  return starts;
}

// The model's positions end a text, too.
int64_t room_after(int64_t length, int64_t positions) {
  return std::max<int64_t>(positions - length, 0);
}

void note_full_positions(const Arguments& args, int64_t length, int64_t positions) {
  const int64_t room = room_after(length, positions);
  if (!args.max_new_tokens || *args.max_new_tokens <= room) return;
  notice("a prompt of {} tokens leaves {} of the model's {} positions: --max-new-tokens {} cannot be reached",
         length, room, positions, *args.max_new_tokens);
}

int64_t new_tokens(const Arguments& args, int64_t length, int64_t positions) {
  const int64_t asked = args.max_new_tokens.value_or(std::max<int64_t>(args.out_seq_length - length, 0));
  return std::min(room_after(length, positions), asked);
}

// All tensor-parallel ranks compute, and the first tells.
void generate_texts(LoadedModel& loaded, const Mesh& mesh) {
  const Arguments& args = loaded.args;
  const std::unique_ptr<Tokenizer> tokenizer = build_tokenizer(tokenizer_options(args));
  GenerationOptions options = generation_options(args, *tokenizer);
  std::optional<Texts> texts;
  if (mesh.rank() == 0) texts.emplace(args);
  for (const Start& start : starts_of(args, *tokenizer, mesh.world_size())) {
    const auto length = static_cast<int64_t>(start.ids.size());
    const int64_t positions = loaded.model->config().max_positions;
    if (texts) note_full_positions(args, length, positions);
    options.max_new_tokens = new_tokens(args, length, positions);
    std::vector<int32_t> next = generate(*loaded.model, start.ids, options);
    options.stream += 1;
    if (!texts) continue;
    const bool finished = !next.empty() && next.back() == options.end_token;
    if (finished) next.pop_back();
    const SampleText sample{.iteration = loaded.checkpoint.iteration,
                            .prompt = start.text,
                            .text = continuation(*tokenizer, start.ids, next)};
    texts->add(sample, args.num_samples > 0 ? json_line(sample.text, next.size(), finished)
                                            : sample.prompt + sample.text + "\n");
  }
  if (!texts) return;
  texts->finish();
  if (args.run_dir) write_report(*args.run_dir + "/metrics.jsonl", *args.run_dir + "/report.html");
}

// The settings that matter here; those of the model come with the checkpoint.
std::string help() {
  const std::set<std::string_view> others = {"load",   "ckpt_step",   "bf16",    "fp16",       "seed",
                                             "device", "num_threads", "run_dir", "config_file"};
  std::vector<Field> fields;
  for (const Field& field : arguments_schema().fields()) {
    const bool chosen = field.traits.program == "generate" || field.group == "Tokenizer";
    if (chosen || others.contains(field.name)) fields.push_back(field);
  }
  const Arguments defaults;
  return help_text(Schema({.fields = fields, .old_flags = {}, .later_flags = {}}),
                   "teratron generate --load DIR [--prompt TEXT ...] [FLAGS]", &defaults) +
         "\nThe model and its tokenizer are the checkpoint's; every other flag of `teratron pretrain gpt` is "
         "taken\nand overrules them. Without --prompt or --sample-input-file, prompts are read from standard "
         "input.\n";
}

}  // namespace

int generate_command(std::span<const std::string> args) {
  const ParsedArguments parsed = parse_arguments("generate", args, {.architecture = architecture_settings});
  if (parsed.help) {
    print_line(help());
    return 0;
  }
  if (parsed.args.num_threads) at::set_num_threads(static_cast<int>(*parsed.args.num_threads));
  run_tensor_parallel(parsed, [&](const Mesh& mesh) {
    LoadedModel loaded = load_for_inference(
        parsed, {.dtype = model_dtype(parsed.args), .device = choose_device(parsed.args)}, mesh);
    generate_texts(loaded, mesh);
  });
  return 0;
}

}  // namespace teratron
