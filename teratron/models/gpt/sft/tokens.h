// Conversations as tokens with the positions that are learned, and their packing into rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "teratron/models/gpt/sft/conversations.h"

namespace teratron {

/// Which tokens a model learns to write.
enum class LearnedTokens : uint8_t { answers, all };

struct TokenizedConversation {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> is_learned;  // of each token: it is a target
};

/// The tokens of the template's text, or where it rewrites earlier turns of the texts to learn each answer
/// from (ChatTemplate::examples()). Those that share a character with an answer are learned, or all. Begin
/// with one BOS at most. UserError(data) with the conversation's place for what the template refuses.
std::vector<TokenizedConversation> tokenize(const Conversation& conversation, const ChatTemplate& chat,
                                            const Tokenizer& tokenizer, LearnedTokens learned);

/// Conversations, by index, of each row of `capacity` tokens; none is longer. Each goes, in the given order,
/// into the row with the least room that is enough (best fit).
std::vector<std::vector<int64_t>> pack_best_fit(const std::vector<int64_t>& order,
                                                const std::vector<int64_t>& lengths, int64_t capacity);

/// The columns of one row of S tokens, as Megatron-LM's SFTDataset makes them, except that no conversation's
/// first token is learned: there it is, from the conversation before, where all tokens are.
struct PackedConversations {
  std::vector<int32_t> tokens;      // [S]
  std::vector<int32_t> labels;      // [S] the next token, or `pad` where none is learned
  std::vector<uint8_t> is_learned;  // [S] whether the label is
  std::vector<int32_t> starts;      // [S] where the token's conversation starts; padding is of the last one
};
/// The conversations one after the other, cut to S tokens, of which the last then has no label. Positions
/// count from each start.
PackedConversations pack_row(const std::vector<const TokenizedConversation*>& conversations, int64_t length,
                             int32_t pad);

}  // namespace teratron
