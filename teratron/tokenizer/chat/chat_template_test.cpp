#include "teratron/tokenizer/chat/chat_template.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

// "text|[answer]|text", an example per element.
std::vector<std::string> examples(const std::string& jinja, const std::vector<ChatMessage>& messages) {
  std::vector<std::string> all;
  for (const auto& example : ChatTemplate::of_jinja(jinja, "t").examples({.messages = messages})) {
    std::string& text = all.emplace_back();
    for (const ChatPart& part : example) text += part.is_answer ? "[" + part.text + "]" : part.text;
  }
  return all;
}

const std::vector<ChatMessage> two_turns = {
    {"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}};

TEST(ChatTemplate, AnswersFollowThePrompt) {
  const std::string plain =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{{ '' }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  EXPECT_EQ(
      examples(plain, two_turns),
      (std::vector<std::string>{"<user>a<end>\n<assistant>[b<end>]\n<user>c<end>\n<assistant>[d<end>]\n"}));
}

TEST(ChatTemplate, MarkedAnswersAreTaken) {
  const std::string marked =
      "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}."
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}";
  EXPECT_EQ(examples(marked, two_turns),
            (std::vector<std::string>{"user:a;assistant:[b.];user:c;assistant:[d.];"}));
}

TEST(ChatTemplate, RewrittenTurnsAreExamplesOfTheirOwn) {
  // Only the last answer shows that it was thought about.
  const std::string thoughts =
      "{% for m in messages %}<{{ m.role }}>{{ '(thought)' if loop.last and m.role == 'assistant' }}"
      "{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
  EXPECT_EQ(
      examples(thoughts, two_turns),
      (std::vector<std::string>{"<user>a<end><assistant>[(thought)b<end>]",
                                "<user>a<end><assistant>b<end><user>c<end><assistant>[(thought)d<end>]"}));
  // The system message stands in the last question only.
  const std::string last =
      "{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}[INST] "
      "{{ messages[0].content ~ ' ' if loop.last }}{{ m.content }}[/INST]{% else %} {{ m.content }}</s>"
      "{% endif %}{% endfor %}";
  std::vector<ChatMessage> messages = two_turns;
  messages.insert(messages.begin(), {"system", "S"});
  messages[1].content = "the first question";
  messages[3].content = "the second question";
  EXPECT_EQ(examples(last, messages),
            (std::vector<std::string>{
                "[INST] S the first question[/INST][ b</s>]",
                "[INST] the first question[/INST] b</s>[INST] S the second question[/INST][ d</s>]"}));
}

TEST(ChatTemplate, ABeginningOfThoughtsIsNotPartOfOldAnswers) {
  const std::string reasoning =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think>{% endif %}";
  EXPECT_EQ(examples(reasoning, {{"user", "a"}, {"assistant", "b"}}),
            (std::vector<std::string>{"<user>a<end><assistant>[b<end>]"}));
}

TEST(ChatTemplate, FindsNamesFilesAndTexts) {
  EXPECT_EQ(ChatTemplate::find("chatml").text({.messages = {{"user", "a"}}}, true),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(ChatTemplate::find("{{ messages[0].content }}!").text({.messages = {{"user", "a"}}}, true), "a!");
  EXPECT_THROW(ChatTemplate::find("no such template"), UserError);
  EXPECT_THROW(ChatTemplate::find("{% for %}"), UserError);
}

}  // namespace
}  // namespace teratron
