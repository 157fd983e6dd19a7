#include "teratron/models/gpt/sft/tokens.h"

#include <map>

#include "teratron/base/error.h"

namespace teratron {

namespace {

int64_t code_points(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  return count;
}

// Characters [begin, end) of the whole text.
struct Answer {
  int64_t begin, end;
};

using Parts = std::vector<ChatPart>;

std::vector<Parts> examples_of(const Conversation& conversation, const ChatTemplate& chat,
                               LearnedTokens learned) {
  try {
    if (learned == LearnedTokens::all) return {{{chat.text(conversation.chat, /*asks=*/false)}}};
    return chat.examples(conversation.chat);
  } catch (const UserError& error) {
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) problem.where = conversation.where + ": " + problem.where;
    throw UserError(error.exit_code(), std::move(problems));
  }
}

TokenizedConversation tokenize_parts(const Parts& parts, const Tokenizer& tokenizer, LearnedTokens learned) {
  std::string text;
  std::vector<Answer> answers;
  int64_t length = 0;
  for (const ChatPart& part : parts) {
    const int64_t end = length + code_points(part.text);
    if (part.is_answer) answers.push_back({length, end});
    length = end;
    text += part.text;
  }
  std::vector<TokenSpan> spans = tokenizer.encode_with_offsets(text);
  const std::optional<int32_t> bos = tokenizer.special().bos;
  if (bos && spans.size() > 1 && spans[0].id == *bos && spans[1].id == *bos) spans.erase(spans.begin());
  TokenizedConversation result;
  size_t next = 0;  // the first answer that does not end before the token
  for (const TokenSpan& span : spans) {
    while (next < answers.size() && answers[next].end <= span.begin) ++next;
    const bool in_answer = span.end > span.begin && next < answers.size() && span.end > answers[next].begin;
    result.tokens.push_back(span.id);
    result.is_learned.push_back(in_answer || learned == LearnedTokens::all ? 1 : 0);
  }
  return result;
}

// With the token that ends documents.
TokenizedConversation tokenize_text(const std::string& text, const Tokenizer& tokenizer) {
  TokenizedConversation result;
  tokenizer.encode(text, result.tokens);
  const SpecialTokens& special = tokenizer.special();
  const std::optional<int32_t> end = special.eos ? special.eos : special.eod;
  if (end && (result.tokens.empty() || result.tokens.back() != *end)) result.tokens.push_back(*end);
  result.is_learned.assign(result.tokens.size(), 1);
  return result;
}

}  // namespace

std::vector<TokenizedConversation> tokenize(const Conversation& conversation, const ChatTemplate& chat,
                                            const Tokenizer& tokenizer, LearnedTokens learned) {
  if (!conversation.text.empty()) return {tokenize_text(conversation.text, tokenizer)};
  std::vector<TokenizedConversation> all;
  for (const Parts& each : examples_of(conversation, chat, learned))
    all.push_back(tokenize_parts(each, tokenizer, learned));
  return all;
}

std::vector<std::vector<int64_t>> pack_best_fit(const std::vector<int64_t>& order,
                                                const std::vector<int64_t>& lengths, int64_t capacity) {
  std::vector<std::vector<int64_t>> rows;
  std::multimap<int64_t, size_t> rows_by_room;
  for (const int64_t i : order) {
    const int64_t length = lengths.at(static_cast<size_t>(i));
    TERATRON_ASSERT(length <= capacity, "conversation {} has {} tokens", i, length);
    int64_t room = capacity;
    size_t row = rows.size();
    if (const auto found = rows_by_room.lower_bound(length); found != rows_by_room.end()) {
      std::tie(room, row) = *found;
      rows_by_room.erase(found);
    } else {
      rows.emplace_back();
    }
    rows[row].push_back(i);
    if (room > length) rows_by_room.emplace(room - length, row);
  }
  return rows;
}

PackedConversations pack_row(const std::vector<const TokenizedConversation*>& conversations, int64_t length,
                             int32_t pad) {
  const auto size = static_cast<size_t>(length);
  PackedConversations row;
  for (const TokenizedConversation* const each : conversations) {
    const auto start = static_cast<int32_t>(row.tokens.size());
    row.tokens.insert(row.tokens.end(), each->tokens.begin(), each->tokens.end());
    row.is_learned.insert(row.is_learned.end(), each->is_learned.begin(), each->is_learned.end());
    // Nothing before it in its conversation: it would be learned from the end of another.
    if (!each->tokens.empty()) row.is_learned[static_cast<size_t>(start)] = 0;
    row.starts.resize(row.tokens.size(), start);
  }
  row.tokens.resize(size, pad);
  row.is_learned.resize(size, 0);
  row.starts.resize(size, row.starts.empty() ? 0 : row.starts.back());
  // Position i learns to write token i + 1; the last one has none.
  row.labels.assign(row.tokens.begin() + 1, row.tokens.end());
  row.labels.push_back(pad);
  row.is_learned.erase(row.is_learned.begin());
  row.is_learned.push_back(0);
  for (size_t i = 0; i < size; ++i) {
    if (row.is_learned[i] == 0) row.labels[i] = pad;
  }
  return row;
}

}  // namespace teratron
