#include "teratron/cli/generate/generate_terminal.h"

#include <csignal>

#include <fcntl.h>
#include <unistd.h>

#include "teratron/base/environment.h"
#include "teratron/base/strings.h"
#include "teratron/cli/generate/line_editor.h"
#include "teratron/generate/texts.h"

namespace teratron {

namespace {

// Streams the answer to a request; Ctrl-C ends it.
void answer(const GenerateJob& job, GenerationRequest request, RankedEngine& engine, LineEditor& editor) {
  TextStream stream(*job.tokenizer, request);
  const bool beams = request.beams.width > 0;
  request.choices = 1;
  request.on_token = [&](int64_t, const GeneratedToken& token) {
    editor.write(terminal_text(stream.add(token.id)));
  };
  const int64_t id = engine.submit(request);
  while (engine.step()) {
    if (editor.interrupted()) engine.cancel(id);
  }
  for (const GenerationResult& result : engine.take_results()) {
    const bool has_text = beams && !result.choices.empty();
    editor.write(terminal_text(has_text ? answer_text(*job.tokenizer, request, result.choices.front())
                                        : stream.finish()));
  }
  editor.write("\n");
}

void converse(const GenerateJob& job, RankedEngine& engine, LineEditor& editor) {
  editor.write(
      "Each input is continued. Ctrl-C ends an answer, Ctrl-D the program; a line that ends with \\ goes "
      "on.\n");
  uint64_t inputs = 0;
  while (const std::optional<std::string> input = editor.read("> ", [&] { engine.keep_alive(); })) {
    if (input->empty()) continue;
    try {
      GenerationRequest request = job.reader.defaults;
      request.sequence = inputs++;
      request.logprobs = false;
      set_prompt(job.reader,
                 encode_prompt(*job.tokenizer, *input, job.args().add_bos ? job.reader.document_end : -1),
                 request);
      if (job.reader.total_length > 0) {
        request.max_new_tokens =
            std::max<int64_t>(job.reader.total_length - static_cast<int64_t>(request.prompt.size()), 1);
      }
      answer(job, std::move(request), engine, editor);
    } catch (const UserError& error) {
      editor.write(std::string("error: ") + error.what() + "\n");
    }
  }
}

}  // namespace

std::unique_ptr<JobTerminal> JobTerminal::open(int64_t ranks) {
  if (ranks == 1 && isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1)
    return std::unique_ptr<JobTerminal>(new JobTerminal(STDIN_FILENO, STDOUT_FILENO));
  // The launcher says so if it has a terminal.
  if (!process_environment("TERATRON_PROGRESS")) return nullptr;
  const int terminal = ::open("/dev/tty", O_RDWR | O_CLOEXEC);
  if (terminal < 0) return nullptr;
  std::unique_ptr<JobTerminal> job(new JobTerminal(terminal, terminal));
  std::signal(SIGTTOU, SIG_IGN);  // a background process may become the one in the foreground
  job->taken_ = tcsetpgrp(terminal, getpgrp()) == 0;
  return job->taken_ ? std::move(job) : nullptr;
}

JobTerminal::~JobTerminal() {
  if (in_ == STDIN_FILENO) return;
  if (taken_) tcsetpgrp(in_, getpgid(getppid()));
  ::close(in_);
}

void generate_in_terminal(const GenerateJob& job, const JobTerminal* terminal) {
  EngineSettings settings = engine_settings(job);
  settings.max_rows = std::max<int64_t>(1, job.args().num_beams);
  with_engine(job, settings, [&](RankedEngine& engine) {
    LineEditor editor(terminal->in(), terminal->out());
    converse(job, engine, editor);
  });
}

}  // namespace teratron
