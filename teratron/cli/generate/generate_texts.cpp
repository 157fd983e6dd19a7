#include "teratron/cli/generate/generate_texts.h"

#include <iostream>
#include <map>
#include <optional>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/base/strings.h"
#include "teratron/base/text_lines.h"
#include "teratron/generate/texts.h"
#include "teratron/telemetry/metrics_logger.h"
#include "teratron/telemetry/report.h"

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

// As in Megatron-LM, the texts of FILE are also written to FILE.out.
std::optional<std::string> output_file(const Arguments& args) {
  if (args.sample_output_file || !args.sample_input_file) return args.sample_output_file;
  return *args.sample_input_file + ".out";
}

// Writes texts to stdout, a file and the metrics of a run.
class TextWriter {
 public:
  explicit TextWriter(const Arguments& args) {
    if (const auto path = output_file(args)) file_.emplace(*path, ExitCode::config);
    if (args.run_dir)
      metrics_logger_.add_async("metrics.jsonl", jsonl_writer(*args.run_dir + "/metrics.jsonl"));
  }
  /// `line` is written to the file.
  void add(const SampleText& sample, const std::string& line) {
    print("{}{}", stdout_text(sample.prompt), stdout_text(sample.text));
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

struct Prompt {
  std::string text;
  GenerationRequest request;
};

std::vector<Prompt> prompts_of(const GenerateJob& job) {
  const Arguments& args = job.args();
  if (args.num_samples > 0 && (!args.prompt.empty() || args.sample_input_file)) {
    throw config_error({.what = "--num-samples generates texts without a prompt, but prompts are given",
                        .where = "--num-samples",
                        .fix = "Use one of them"});
  }
  if (args.num_samples > 0 && job.reader.has_source) {
    throw config_error({.what = "a model with an encoder generates no text without a source",
                        .where = "--num-samples",
                        .fix = "Use --prompt"});
  }
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < args.num_samples; ++i) {
    prompts.push_back({"", job.reader.defaults});
    prompts.back().request.prompt = document_start(*job.tokenizer);
    prompts.back().request.sequence = static_cast<uint64_t>(i * args.num_return_sequences);
  }
  if (args.num_samples > 0) return prompts;
  if (args.add_bos && job.reader.document_end < 0) {
    throw config_error(
        {.what = "the tokenizer has no end-of-document token", .where = "--add-bos", .fix = "Leave it out"});
  }
  for (const std::string& text : read_prompts(args, job.mesh.world_size())) {
    const size_t index = prompts.size();
    prompts.push_back({text, job.reader.defaults});
    prompts.back().request.sequence = index * static_cast<uint64_t>(args.num_return_sequences);
    set_prompt(job.reader, encode_prompt(*job.tokenizer, text, args.add_bos ? job.reader.document_end : -1),
               prompts.back().request);
  }
  return prompts;
}

void set_new_tokens(const GenerateJob& job, Prompt& prompt) {
  const auto length = static_cast<int64_t>(prompt.request.prompt.size());
  const int64_t positions = job.loaded.model.max_positions;
  if (job.mesh.rank() == 0) notice_position_limit(job.args(), length, positions);
  if (job.reader.total_length > 0)
    prompt.request.max_new_tokens = std::max<int64_t>(job.reader.total_length - length, 0);
  if (length < positions)
    prompt.request.max_new_tokens = std::min(prompt.request.max_new_tokens, room_after(length, positions));
}

EngineSettings settings_for(const GenerateJob& job, const std::vector<Prompt>& prompts) {
  EngineSettings settings = engine_settings(job);
  int64_t rows = 0;
  for (const Prompt& prompt : prompts) {
    const GenerationRequest& request = prompt.request;
    rows += std::max(request.choices, request.beams.width);
    settings.longest =
        std::max(settings.longest, static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens);
    settings.longest_source = std::max(settings.longest_source, static_cast<int64_t>(request.source.size()));
  }
  const int64_t most = settings.max_rows > 0               ? settings.max_rows
                       : job.loaded.model.device.is_cuda() ? 64
                                                           : 16;
  settings.max_rows = std::max({std::min(rows, most), job.args().num_beams, job.args().num_return_sequences});
  return settings;
}

void write_answers(const GenerateJob& job, const Prompt& prompt, const GenerationResult& result,
                   const OnText& on_text) {
  for (const GeneratedChoice& choice : result.choices) {
    const SampleText sample{.iteration = job.loaded.checkpoint.iteration,
                            .prompt = prompt.text,
                            .text = answer_text(*job.tokenizer, prompt.request, choice)};
    const bool finished = choice.finish_reason == "stop";
    const bool has_end =
        finished && !choice.tokens.empty() && ends_at_token(prompt.request.stop, choice.tokens.back());
    on_text(sample, job.args().num_samples > 0
                        ? json_line(sample.text, choice.tokens.size() - (has_end ? 1 : 0), finished)
                        : sample.prompt + sample.text + "\n");
  }
}

void answer_prompts(const GenerateJob& job, const std::vector<Prompt>& prompts, RankedEngine& engine,
                    const OnText& on_text) {
  std::map<int64_t, size_t> prompt_of;
  std::map<size_t, GenerationResult> results;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const GenerationRequest& request = prompts[i].request;
    if (request.max_new_tokens == 0) {
      results[i].choices.resize(request.choices, {.tokens = {}, .finish_reason = "length", .logprobs = {}});
    } else {
      prompt_of[engine.submit(request)] = i;
    }
  }
  size_t written = 0;
  bool busy = true;
  while (busy || written < prompts.size()) {
    busy = engine.step();
    for (GenerationResult& result : engine.take_results())
      results[prompt_of.at(result.id)] = std::move(result);
    for (; results.contains(written); ++written) {
      write_answers(job, prompts[written], results.at(written), on_text);
      results.erase(written);
    }
  }
}

std::vector<Prompt> limited_prompts(const GenerateJob& job) {
  if (job.args().logprobs && job.mesh.rank() == 0)
    notice("--logprobs has an effect on the answers of --input only");
  std::vector<Prompt> prompts = prompts_of(job);
  for (Prompt& prompt : prompts) {
    prompt.request.logprobs = false;
    set_new_tokens(job, prompt);
  }
  return prompts;
}

}  // namespace

void generate_texts(const GenerateJob& job, const OnText& on_text) {
  const std::vector<Prompt> prompts = limited_prompts(job);
  with_engine(job, settings_for(job, prompts),
              [&](RankedEngine& engine) { answer_prompts(job, prompts, engine, on_text); });
}

void generate_texts(const GenerateJob& job) {
  const std::vector<Prompt> prompts = limited_prompts(job);
  with_engine(job, settings_for(job, prompts), [&](RankedEngine& engine) {
    TextWriter texts(job.args());
    answer_prompts(job, prompts, engine,
                   [&](const SampleText& sample, const std::string& line) { texts.add(sample, line); });
    texts.finish();
    const Arguments& args = job.args();
    if (args.run_dir) write_report(*args.run_dir + "/metrics.jsonl", *args.run_dir + "/report.html");
  });
}

}  // namespace teratron
