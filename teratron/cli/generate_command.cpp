#include <iostream>
#include <optional>
#include <set>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/base/text_lines.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/run_job.h"
#include "teratron/generate/generator.h"
#include "teratron/generate/loaded_model.h"
#include "teratron/hf/architecture.h"
#include "teratron/models/precision.h"
#include "teratron/settings/component_options.h"
#include "teratron/telemetry/metrics_logger.h"
#include "teratron/telemetry/report.h"
#include "teratron/tokenizer/tokenizer.h"
#include "teratron/train/engine_options.h"

namespace teratron {

namespace {

std::vector<std::string> lines_of(std::istream& input, std::string_view where) {
  std::vector<std::string> lines;
  for (std::string line; next_line(input, line, where);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> read_prompts(const Arguments& args, int64_t ranks) {
  if (!args.prompt.empty()) return args.prompt;
  if (!args.sample_input_file && ranks > 1) {
    throw config_error({.what = "a job of several ranks cannot read prompts from standard input",
                        .where = "--prompt",
                        .fix = "Use --prompt or --sample-input-file"});
  }
  if (!args.sample_input_file) return lines_of(std::cin, "standard input");
  std::ifstream file = open_text(*args.sample_input_file, ExitCode::config);
  return lines_of(file, *args.sample_input_file);
}

GenerationOptions generation_options(const Arguments& args, const Tokenizer& tokenizer) {
  GenerationOptions options{.sampling = {.temperature = args.temperature,
                                         .top_k = args.greedy ? 1 : args.top_k,
                                         .top_p = args.top_p,
                                         .seed = static_cast<uint64_t>(args.seed)},
                            .end_token = tokenizer.special().eod.value_or(-1)};
  check_sampling(options.sampling);
  return options;
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<int32_t> ids;
  tokenizer.encode(prompt, ids);
  if (ids.empty()) {
    throw config_error(
        {.what = "the prompt has no tokens", .where = "--prompt", .fix = "Write at least one word"});
  }
  return ids;
}

// The text of `next` after `prompt`, decoded together since some tokenizers put a blank between two ids.
std::string continuation(const Tokenizer& tokenizer, std::vector<int32_t> prompt,
                         const std::vector<int32_t>& next) {
  const size_t known = tokenizer.decode(prompt).size();
  prompt.insert(prompt.end(), next.begin(), next.end());
  return tokenizer.decode(prompt).substr(known);
}

// Writes texts to stdout, a file and the metrics of a run.
class TextWriter {
 public:
  explicit TextWriter(const Arguments& args) {
    if (args.sample_output_file) file_.emplace(*args.sample_output_file, ExitCode::config);
    if (args.run_dir)
      metrics_logger_.add_async("metrics.jsonl", jsonl_writer(*args.run_dir + "/metrics.jsonl"));
  }
  /// `line` is written to the file.
  void add(const SampleText& sample, const std::string& line) {
    print("{}{}", sample.prompt, sample.text);
    print("");
    if (file_) file_->write(line + "\n");
    metrics_logger_.log({.wall_time = wall_clock(), .data = sample});
  }
  void finish() {
    if (file_) file_->commit();
    metrics_logger_.flush();
  }

 private:
  std::optional<AtomicFile> file_;
  MetricsLogger metrics_logger_;
};

// Without a prompt a text starts like a document: after the end-of-document token.
std::vector<int32_t> document_start(const Tokenizer& tokenizer) {
  const SpecialTokens& special = tokenizer.special();
  const std::optional<int32_t> start = special.eod ? special.eod : special.bos;
  if (start) return {*start};
  throw config_error({.what = "the tokenizer has no token to start a document with",
                      .where = "--num-samples",
                      .fix = "Use --prompt"});
}

// Megatron-LM's format of texts without a prompt.
std::string json_line(const std::string& text, size_t length, bool finished) {
  const nlohmann::ordered_json line = {{"text", text}, {"length", length}, {"finished", finished}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

struct Prompt {
  std::string text;
  std::vector<int32_t> ids;
};

std::vector<Prompt> prompts_of(const Arguments& args, const Tokenizer& tokenizer, int64_t ranks) {
  if (args.num_samples > 0 && (!args.prompt.empty() || args.sample_input_file)) {
    throw config_error({.what = "--num-samples generates texts without a prompt, but prompts are given",
                        .where = "--num-samples",
                        .fix = "Use one of them"});
  }
  if (args.num_samples > 0) return std::vector<Prompt>(args.num_samples, {"", document_start(tokenizer)});
  std::vector<Prompt> prompts;
  for (const std::string& prompt : read_prompts(args, ranks))
    prompts.push_back({prompt, encode_prompt(tokenizer, prompt)});
  return prompts;
}

// New tokens until the model has no positions left.
int64_t room_after(int64_t length, int64_t positions) {
  return std::max<int64_t>(positions - length, 0);
}

void notice_position_limit(const Arguments& args, int64_t length, int64_t positions) {
  const int64_t room = room_after(length, positions);
  if (!args.max_new_tokens || *args.max_new_tokens <= room) return;
  notice("a prompt of {} tokens leaves {} of the model's {} positions, fewer than --max-new-tokens {}",
         length, room, positions, *args.max_new_tokens);
}

int64_t new_tokens(const Arguments& args, int64_t length, int64_t positions) {
  const int64_t requested = args.max_new_tokens.value_or(std::max<int64_t>(args.out_seq_length - length, 0));
  return std::min(room_after(length, positions), requested);
}

// All tensor-parallel ranks compute; rank 0 prints.
void generate_texts(LoadedModel& loaded, const Mesh& mesh) {
  const Arguments& args = loaded.args;
  const std::unique_ptr<Tokenizer> tokenizer = build_tokenizer(tokenizer_options(args));
  GenerationOptions options = generation_options(args, *tokenizer);
  std::optional<TextWriter> texts;
  if (mesh.rank() == 0) texts.emplace(args);
  for (const Prompt& prompt : prompts_of(args, *tokenizer, mesh.world_size())) {
    const auto length = static_cast<int64_t>(prompt.ids.size());
    const int64_t positions = loaded.model.max_positions;
    if (texts) notice_position_limit(args, length, positions);
    options.max_new_tokens = new_tokens(args, length, positions);
    std::vector<int32_t> next = generate(loaded.model, prompt.ids, options);
    options.sequence += 1;
    if (!texts) continue;
    const bool finished = !next.empty() && next.back() == options.end_token;
    if (finished) next.pop_back();
    const SampleText sample{.iteration = loaded.checkpoint.iteration,
                            .prompt = prompt.text,
                            .text = continuation(*tokenizer, prompt.ids, next)};
    texts->add(sample, args.num_samples > 0 ? json_line(sample.text, next.size(), finished)
                                            : sample.prompt + sample.text + "\n");
  }
  if (!texts) return;
  texts->finish();
  if (args.run_dir) write_report(*args.run_dir + "/metrics.jsonl", *args.run_dir + "/report.html");
}

// The settings of generation; those of the model come from the checkpoint.
std::string help() {
  const std::set<std::string_view> others = {"load",   "ckpt_step",   "bf16",    "fp16",       "seed",
                                             "device", "num_threads", "run_dir", "config_file"};
  std::vector<Field> fields;
  for (const Field& field : arguments_schema().fields()) {
    const bool chosen = field.traits.program == "generate" || field.group == "Tokenizer";
    if (chosen || others.contains(field.name)) fields.push_back(field);
  }
  const Arguments defaults;
  return help_text(Schema({.fields = fields, .compat_flags = {}, .later_flags = {}}),
                   {"teratron generate --load DIR [--prompt TEXT ...] [FLAGS]"}, &defaults) +
         "\nModel and tokenizer come from the checkpoint; the other flags of `teratron pretrain gpt` "
         "override "
         "them.\nWithout --prompt or --sample-input-file, prompts are read from standard input.\n";
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
        parsed, {.dtype = model_dtype(parsed.args), .device = choose_device(parsed.args), .generates = true},
        mesh);
    generate_texts(loaded, mesh);
  });
  return 0;
}

}  // namespace teratron
