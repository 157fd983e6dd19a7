#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "teratron/models/gpt/data/gpt_dataset.h"
#include "teratron/models/gpt/sft/sft_dataset.h"
#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

using nlohmann::json;

// The fixture's tokenizer: words and special tokens; blanks vanish, a newline is a token.
class WordTokenizer : public Tokenizer {
 public:
  explicit WordTokenizer(const json& vocabulary)
      : vocabulary_(vocabulary.get<std::map<std::string, int32_t>>()) {
    special_.eod = 2;
  }
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for (const TokenSpan& span : encode_with_offsets(text)) ids.push_back(span.id);
  }
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override {
    std::vector<TokenSpan> spans;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = end_of_word(text, begin);
      const std::string word(text.substr(begin, end - begin));
      if (word != " ") {
        const auto found = vocabulary_.find(word);
        spans.push_back({found == vocabulary_.end() ? 0 : found->second, static_cast<int64_t>(begin),
                         static_cast<int64_t>(end)});
      }
      begin = end;
    }
    return spans;
  }
  std::string decode(std::span<const int32_t>) const override { return {}; }
  int64_t vocab_size() const override { return static_cast<int64_t>(vocabulary_.size()); }
  const SpecialTokens& special() const override { return special_; }

 private:
  static size_t end_of_word(std::string_view text, size_t begin) {
    if (text[begin] == ' ' || text[begin] == '\n') return begin + 1;
    if (text[begin] == '<') return text.find('>', begin) + 1;
    return std::min(text.find_first_of(" \n<", begin), text.size());
  }
  std::map<std::string, int32_t> vocabulary_;
  SpecialTokens special_;
};

struct SftFixture : ::testing::Test {
  json fixture = testing::read_json(testing::fixture("models/sft.json"));
  WordTokenizer tokenizer{fixture["vocab"]};

  static std::vector<ChatMessage> messages_of(const json& list) {
    std::vector<ChatMessage> messages;
    for (const json& each : list) messages.push_back({each["role"], each["content"]});
    return messages;
  }

  // A system message begins a new conversation. The fixture's contents are lines of text for `identity`, and
  // its template for `default` writes <SPECIAL_11>, the role and the content on lines.
  std::vector<TokenizedConversation> tokenized_line(const json& line, const std::string& format) const {
    std::vector<Conversation> conversations;
    for (ChatMessage message : messages_of(line)) {
      if (conversations.empty() || message.role == "system") conversations.emplace_back();
      const size_t first = message.content.find_first_not_of(' ');
      const std::string content =
          message.content.substr(first, message.content.find_last_not_of(' ') + 1 - first) + "\n";
      if (format == "identity") message.content = content;
      if (format == "default") message.content = "<SPECIAL_11>" + message.role + "\n" + content;
      conversations.back().chat.messages.push_back(message);
    }
    const ChatTemplate chat = ChatTemplate::find(format == "default" ? "identity" : format);
    std::vector<TokenizedConversation> all;
    for (const Conversation& each : conversations)
      all.push_back(
          tokenize(each, chat, tokenizer, format == "default" ? LearnedTokens::all : LearnedTokens::answers)
              .at(0));
    return all;
  }
};

template <typename T>
std::vector<int64_t> as_ints(const T& values) {
  return {values.begin(), values.end()};
}

std::vector<int64_t> targets_of(const TokenizedConversation& conversation) {
  std::vector<int64_t> targets;
  for (size_t i = 0; i < conversation.tokens.size(); ++i)
    targets.push_back(conversation.is_learned[i] != 0 ? conversation.tokens[i] : -100);
  return targets;
}

TEST_F(SftFixture, MegatronsPromptFormats) {
  int checked = 0;
  for (const json& format : fixture["cases"]) {
    if (format["prompt_format"] == "default") continue;  // its template is a toy that has no name
    const ChatTemplate chat = ChatTemplate::find(format["prompt_format"].get<std::string>());
    for (const json& each : format["conversations"]) {
      const Conversation conversation{.chat = {.messages = messages_of(each["messages"])}, .where = "here"};
      const TokenizedConversation tokens =
          tokenize(conversation, chat, tokenizer, LearnedTokens::answers).at(0);
      EXPECT_EQ(json(tokens.tokens), each["tokens"]) << each["messages"];
      EXPECT_EQ(json(targets_of(tokens)), each["targets"]) << each["messages"];
      ++checked;
    }
    std::vector<int32_t> pad;
    tokenizer.encode(chat.pad(), pad);
    EXPECT_EQ(pad, (std::vector<int32_t>{format["pad"].get<int32_t>()}));
  }
  EXPECT_EQ(checked, 12);
}

TEST_F(SftFixture, RowsAreMegatrons) {
  int checked = 0, changed = 0;
  for (const json& format : fixture["cases"]) {
    std::vector<std::vector<TokenizedConversation>> lines;
    for (const json& line : fixture["lines"]) lines.push_back(tokenized_line(line, format["prompt_format"]));
    for (const json& sample : format["samples"]) {
      if (sample["context_parallel"] != 1) continue;  // rows are not padded for context parallelism here
      const auto length = sample["sequence_length"].get<int64_t>();
      std::vector<const TokenizedConversation*> conversations;
      for (const TokenizedConversation& each : lines.at(sample["line"].get<size_t>()))
        conversations.push_back(&each);
      const PackedConversations row = pack_row(conversations, length, format["pad"]);
      EXPECT_EQ(json(row.tokens), sample["tokens"]);
      std::set<int64_t> bounds(sample["cu_seqlens"].begin(), sample["cu_seqlens"].end());
      bounds.erase(length);
      // In its format `default`, Megatron-LM learns the first token of a conversation from the one before.
      json learned = sample["loss_mask"];
      for (const int64_t start : bounds) {
        if (start > 0) learned[static_cast<size_t>(start - 1)] = 0;
      }
      EXPECT_TRUE(learned == sample["loss_mask"] || format["prompt_format"] == "default");
      changed += learned != sample["loss_mask"] ? 1 : 0;
      EXPECT_EQ(json(row.is_learned), learned);
      EXPECT_EQ(std::set<int64_t>(row.starts.begin(), row.starts.end()), bounds);
      for (size_t i = 0; i < row.tokens.size(); ++i) {
        EXPECT_EQ(static_cast<int64_t>(i) - row.starts[i], sample["position_ids"][i]);
        if (row.is_learned[i] == 0) continue;
        EXPECT_EQ(row.labels[i], sample["labels"][i]);
      }
      ++checked;
    }
  }
  EXPECT_GT(checked, 15);
  EXPECT_GT(changed, 0);
}

// Whatever is before a conversation in its row, the same tokens of it are learned, from its own tokens.
TEST(SftPacking, NothingIsLearnedFromAnotherConversation) {
  const TokenizedConversation one{{10, 11, 12}, {1, 1, 1}}, two{{20, 21}, {1, 1}}, three{{30}, {1}};
  const PackedConversations row = pack_row({&one, &two, &three, &one}, 12, 0);
  EXPECT_EQ(row.tokens, (std::vector<int32_t>{10, 11, 12, 20, 21, 30, 10, 11, 12, 0, 0, 0}));
  EXPECT_EQ(row.is_learned, (std::vector<uint8_t>{1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(row.labels, (std::vector<int32_t>{11, 12, 0, 21, 0, 0, 11, 12, 0, 0, 0, 0}));
}

TEST(SftPacking, EveryConversationHasOneRowThatHoldsIt) {
  const std::vector<int64_t> lengths = {5, 3, 8, 2, 4, 1, 7, 6, 10}, order = {8, 2, 0, 5, 1, 3, 7, 4, 6};
  const auto rows = pack_best_fit(order, lengths, 10);
  std::multiset<int64_t> seen;
  for (const std::vector<int64_t>& row : rows) {
    int64_t used = 0;
    for (const int64_t i : row) used += lengths[static_cast<size_t>(i)];
    EXPECT_LE(used, 10);
    seen.insert(row.begin(), row.end());
  }
  EXPECT_EQ(seen, (std::multiset<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(rows.size(), 5U) << "46 tokens need 5 rows";
}

struct SftFiles : SftFixture {
  testing::TemporaryFolder folder;
  std::filesystem::path file = folder.path() / "chats.jsonl";
  ChatTemplate chat = ChatTemplate::find("nemotron-nano-v2");
  SftDataOptions options{
      .sources = {.data_path = {file.string()}, .split = "1,0,0", .samples = {std::nullopt, 0, 0}},
      .sequence_length = 40,
      .chat = chat,
      .tokenizer = tokenizer};

  void write(const std::string& text) const { std::ofstream(file) << text; }
  // The problems as "line: what".
  std::string problems() const {
    try {
      build_sft_datasets(options);
      return "none";
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::data);
      std::string all;
      for (const Problem& problem : error.problems()) {
        EXPECT_FALSE(problem.fix.empty());
        all += problem.where.substr(problem.where.find("chats.jsonl:") + 12) + ": " + problem.what + "\n";
      }
      return all;
    }
  }
};

constexpr const char* good =
    R"({"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]})";

TEST_F(SftFiles, EveryBadLineIsNamed) {
  write(std::string(good) + "\n\n" + R"({"messages": []}
{"messages": [{"role": "usr", "content": "a"}]}
{"messages": [{"role": "user"}]}
{"messages": [{"role": "user", "content": "a"}]}
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": " \n"}]}
{"messages": [{"role": "assistant", "content": "a"}]}
{"prompt": "a"}
{"txt": "a"}
{"messages": 3}
[1]
{"conversations": [{"from": "human", "value": 5}]}
{"messages": )");
  const std::string all = problems();
  for (const char* const each :
       {"3: the conversation is empty", "4: unknown role 'usr'", "5: a message has no \"content\"",
        "6: the conversation has no answer", "7: message 2 is an empty answer",
        "8: message 1 of the assistant follows nothing", "9: the line has no \"completion\"",
        "10: the line has no \"messages\"", "11: the messages are not a list",
        "12: the line is not a JSON object", "13: the content of a message is not a text", "14:"})
    EXPECT_NE(all.find(each), all.npos) << each << " in\n" << all;
  EXPECT_NE(all.substr(0, 2), "1:") << "the first line is right";
}

TEST(Conversations, TextsWithoutJsonAreToldTheirForm) {
  std::vector<Problem> wrong;
  EXPECT_TRUE(parse_conversations("Once upon a time", "story.txt:1", wrong).empty());
  ASSERT_EQ(wrong.size(), 1U);
  EXPECT_EQ(wrong[0].fix, "Write texts as lines of {\"text\": \"...\"}, or name the file .txt");
}

TEST_F(SftFiles, OtherFormsAreTheSameConversation) {
  const auto tokens = [&](const std::string& line) {
    std::vector<Problem> wrong;
    const auto parsed = parse_conversations(line, "here", wrong);
    EXPECT_TRUE(wrong.empty()) << (wrong.empty() ? "" : wrong[0].what);
    return parsed.size() == 1 ? tokenize(parsed[0], chat, tokenizer, LearnedTokens::answers).at(0).tokens
                              : std::vector<int32_t>();
  };
  const auto expected = tokens(good);
  EXPECT_FALSE(expected.empty());
  for (
      const char* const line :
      {R"({"conversations": [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c"}]})",
       R"({"prompt": "a b", "completion": "c"})", R"({"instruction": "a b", "input": "", "output": "c"})",
       R"({"instruction": "a b", "output": "c"})",
       R"({"prompt": [{"role": "user", "content": "a b"}], "completion": [{"role": "assistant", "content": "c"}]})",
       R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c"}]})"})
    EXPECT_EQ(tokens(line), expected) << line;
}

TEST_F(SftFiles, LongConversationsAreRefusedCutOrLeftOut) {
  std::string answer;
  for (int i = 0; i < 50; ++i) answer += "a ";
  write(std::string(good) + "\n" + R"({"prompt": "b", "completion": ")" + answer + "\"}\n" +
        R"({"prompt": ")" + answer + R"(", "completion": "b"})");
  EXPECT_NE(problems().find("2: a conversation of 61 tokens is longer than a row of 40"), std::string::npos)
      << problems();
  options.overlong = OverlongConversations::truncate;
  std::string report = build_sft_datasets(options).train->report();
  EXPECT_NE(report.find("2 conversations in 2 rows"), report.npos) << report;
  EXPECT_NE(report.find("1 longer ones were truncated; 1 longer ones were dropped"), report.npos)
      << "of the third nothing would be learned: " << report;
  options.overlong = OverlongConversations::drop;
  report = build_sft_datasets(options).train->report();
  EXPECT_NE(report.find("1 conversations in 1 rows"), report.npos) << report;
  EXPECT_NE(report.find("2 longer ones were dropped"), report.npos) << report;
}

TEST_F(SftFiles, EpochsHaveTheirOwnOrderAndTheSameRows) {
  std::string text;
  for (const char letter : std::string("abcdefghijkl"))
    text +=
        fmt::format(R"({{"prompt": "{0} {0} {0} {0} {0} {0}", "completion": "{0} {0} {0}"}})", letter) + "\n";
  write(text);
  options.sources.samples[0] = 24;
  options.sequence_length = 30;
  const auto rows_of = [&](const Dataset& data, int64_t first, int64_t count) {
    std::vector<std::vector<int64_t>> rows;
    for (int64_t i = first; i < first + count; ++i) {
      Batch batch(gpt_schema(30, {.reset_position_ids = true, .reset_attention_mask = true}), 1);
      data.get(i, batch.sample(0));
      rows.push_back(as_ints(batch.values<int64_t>("tokens")));
    }
    return rows;
  };
  const auto data = build_sft_datasets(options).train;
  const auto first = rows_of(*data, 0, 12), second = rows_of(*data, 12, 12);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::multiset(first.begin(), first.end()), std::multiset(second.begin(), second.end()));

  options.sources.samples[0] = std::nullopt;
  const auto epoch = std::dynamic_pointer_cast<const ResizableDataset>(build_sft_datasets(options).train);
  ASSERT_TRUE(epoch);
  EXPECT_EQ(epoch->size(), 12);
  write("");  // the file is not read again
  const auto longer = epoch->resized(24);
  EXPECT_EQ(rows_of(*longer, 0, 24), rows_of(*data, 0, 24));
  EXPECT_EQ(longer->report(), data->report());
}

}  // namespace
}  // namespace teratron
