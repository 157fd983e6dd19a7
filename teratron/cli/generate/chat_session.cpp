#include "teratron/cli/generate/chat_session.h"

#include <algorithm>

#include "teratron/generate/texts.h"

namespace teratron {

namespace {

class ChatSession {
 public:
  ChatSession(const GenerateJob& job, const ChatTemplate& chat, RankedEngine& engine,
              const ChatTerminal& terminal)
      : job_(job),
        chat_(chat),
        engine_(engine),
        terminal_(terminal),
        ends_(chat.end_tokens(*job.tokenizer)) {}

  void run(const std::string& system) {
    begin(system);
    while (const std::optional<std::string> input = terminal_.read()) {
      if (input->empty()) continue;
      if (*input == "/new") {
        begin(system);
        continue;
      }
      conversation_.messages.push_back({"user", *input});
      try {
        const std::string text = answer(request());
        conversation_.messages.push_back({"assistant", text});
      } catch (const UserError& error) {
        conversation_.messages.pop_back();
        terminal_.write(std::string("error: ") + error.what() + "\n");
      }
    }
  }

 private:
  void begin(const std::string& system) {
    conversation_ = {};
    if (!system.empty()) conversation_.messages.push_back({"system", system});
  }

  GenerationRequest request() {
    GenerationRequest request = job_.reader.defaults;
    request.sequence = answers_++;
    request.logprobs = false;
    request.choices = 1;
    request.beams = {};
    request.prompt = chat_.encode(conversation_, *job_.tokenizer);
    request.stop.tokens.insert(request.stop.tokens.end(), ends_.begin(), ends_.end());
    const int64_t left = engine_.local().limits().max_positions - static_cast<int64_t>(request.prompt.size());
    if (left < 1) {
      throw data_error({.what = fmt::format("the conversation has {} tokens, and the model {} positions",
                                            request.prompt.size(), engine_.local().limits().max_positions),
                        .where = "chat",
                        .fix = "Type /new to begin another one"});
    }
    const std::optional<int64_t>& most = job_.args().max_new_tokens;
    request.max_new_tokens = std::min(left, most.value_or(left));
    return request;
  }

  // Streams it; returns its text.
  std::string answer(GenerationRequest request) {
    TextStream stream(*job_.tokenizer, request);
    std::string text;
    const auto show = [&](const std::string& part) {
      text += part;
      terminal_.write(part);
    };
    request.on_token = [&](int64_t, const GeneratedToken& token) { show(stream.add(token.id)); };
    const int64_t id = engine_.submit(request);
    while (engine_.step()) {
      if (terminal_.interrupted()) engine_.cancel(id);
    }
    engine_.take_results();
    show(stream.finish());
    terminal_.write("\n");
    return text;
  }

  const GenerateJob& job_;
  const ChatTemplate& chat_;
  RankedEngine& engine_;
  const ChatTerminal& terminal_;
  std::vector<int32_t> ends_;
  Chat conversation_;
  uint64_t answers_ = 0;
};

}  // namespace

void run_chat_session(const GenerateJob& job, const ChatTemplate& chat, const std::string& system,
                      RankedEngine& engine, const ChatTerminal& terminal) {
  ChatSession(job, chat, engine, terminal).run(system);
}

}  // namespace teratron
