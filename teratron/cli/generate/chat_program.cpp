#include <algorithm>
#include <iostream>

#include "teratron/base/config/command_line.h"
#include "teratron/base/log.h"
#include "teratron/base/strings.h"
#include "teratron/base/text_lines.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/generate/chat_session.h"
#include "teratron/cli/generate/generate_terminal.h"
#include "teratron/cli/generate/line_editor.h"
#include "teratron/cli/inference_program.h"
#include "teratron/cli/run_job.h"
#include "teratron/hf/architecture.h"

namespace teratron {

namespace {

struct ChatFlags {
  Arguments settings = {};  // chat_template alone
  Arguments others = {};    // for --help
  std::string system;
};

// Flags of `teratron generate` that have no meaning for a conversation.
constexpr std::string_view of_generate_alone[] = {
    "prompt",    "sample_input_file", "sample_output_file",    "out_seq_length", "num_samples",
    "num_beams", "length_penalty",    "num_return_sequences",  "logprobs",       "input",
    "output",    "run_dir",           "inference_max_requests"};

CommandLine command_line(ChatFlags& flags) {
  CommandLine line = {
      .name = "teratron chat",
      .example = "teratron chat --hf Qwen2.5-0.5B-Instruct --temperature 0.7 --top-p 0.8",
      .usage = "(--hf DIR | --load RUN) [FLAGS]",
      .summary = "Chat with a trained model in the terminal.",
      .fields = {bound_setting("chat_template", &flags.settings),
                 bound_field("system_message", &flags.system, "First message of a conversation")},
      .others = OtherArguments::collected,
      .footer =
          "An answer has at most --max-new-tokens tokens, else what is left of the model's positions. "
          "Ctrl-C ends an answer, Ctrl-D the program; /new begins another conversation. Without a "
          "terminal each line of standard input is a message.",
      .main_flags = {"--hf", "--load", "--lora", "--chat-template", "--system-message", "--max-new-tokens",
                     "--temperature", "--top-k", "--top-p", "--greedy", "--seed", "--stop", "--device",
                     "--bf16", "--tensor-model-parallel-size", "--config-file"}};
  const Program program = inference_program("generate");
  for (const Field& field : arguments_schema().fields()) {
    if (is_for(field, program.names) &&
        std::ranges::find(of_generate_alone, field.name) == std::ranges::end(of_generate_alone))
      line.collected.push_back(bound_setting(field.name, &flags.others));
  }
  return line;
}

void refuse_flags_of_generate(const ParsedArguments& parsed) {
  std::vector<Problem> problems;
  for (const std::string_view name : of_generate_alone) {
    const auto source = parsed.sources.find(std::string(name));
    if (source != parsed.sources.end())
      problems.push_back({.what = fmt::format("{} is not for conversations", name),
                          .where = source->second,
                          .fix = "Leave it out, or use `teratron generate`"});
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

ChatTemplate template_of(const GenerateJob& job, const ChatFlags& flags) {
  const auto chat =
      choose_chat_template(flags.settings.chat_template, job.args().tokenizer_model.value_or(""));
  if (chat) return chat->with_marks(marks_of(*job.tokenizer));
  throw config_error(
      {.what = "the model has no chat template",
       .where = "--chat-template",
       .fix = "Give a file with one, or a name such as chatml; `teratron generate` continues texts"});
}

ChatTerminal by_lines(RankedEngine& engine) {
  return {.read = [&engine]() -> std::optional<std::string> {
            engine.keep_alive();
            std::string line;
            if (!next_line(std::cin, line, "standard input")) return std::nullopt;
            return line;
          },
          .write = [](const std::string& text) { std::cout << text << std::flush; }};
}

ChatTerminal by_editor(RankedEngine& engine, LineEditor& editor) {
  return {.read = [&] { return editor.read("> ", [&] { engine.keep_alive(); }); },
          .write = [&](const std::string& text) { editor.write(terminal_text(text)); },
          .interrupted = [&] { return editor.interrupted(); }};
}

// What the model's folder recommends, unless flags say otherwise.
SamplingOptions sampling_of(const ParsedArguments& parsed, const SamplingOptions& given) {
  if (parsed.args.greedy) return given;
  SamplingOptions sampling = recommended_sampling(parsed.args);
  sampling.seed = given.seed;
  const auto is_set = [&](const char* name) { return parsed.sources.contains(name); };
  if (is_set("temperature")) sampling.temperature = given.temperature;
  if (is_set("top_k")) sampling.top_k = given.top_k;
  if (is_set("top_p")) sampling.top_p = given.top_p;
  sampling.top_p_decay = given.top_p_decay;
  sampling.top_p_bound = given.top_p_bound;
  return sampling;
}

void run_rank(const ParsedArguments& parsed, const ChatFlags& flags, const Mesh& mesh) {
  const std::unique_ptr<JobTerminal> terminal =
      mesh.rank() == 0 ? JobTerminal::open(mesh.world_size()) : nullptr;
  GenerateJob job = load_generate_job(parsed, mesh, true);
  if (mesh.rank() == 0) job.reader.defaults.sampling = sampling_of(parsed, job.reader.defaults.sampling);
  const ChatTemplate chat = template_of(job, flags);
  EngineSettings settings = engine_settings(job);
  settings.max_rows = 1;
  with_engine(job, settings, [&](RankedEngine& engine) {
    if (!terminal) return run_chat_session(job, chat, flags.system, engine, by_lines(engine));
    LineEditor editor(terminal->in(), terminal->out());
    editor.write("Ctrl-C ends an answer, Ctrl-D the program; /new begins another conversation.\n");
    run_chat_session(job, chat, flags.system, engine, by_editor(engine, editor));
  });
}

}  // namespace

int chat_program(std::span<const std::string> args) {
  ChatFlags flags;
  const auto others = read_command(command_line(flags), args);
  if (!others) return 0;
  const ParsedArguments parsed =
      parse_arguments(inference_program("generate"), *others, {.architecture = architecture_settings});
  refuse_flags_of_generate(parsed);
  start_inference(parsed);
  run_model_parallel(parsed, [&](const Mesh& mesh) { run_rank(parsed, flags, mesh); });
  return 0;
}

}  // namespace teratron
