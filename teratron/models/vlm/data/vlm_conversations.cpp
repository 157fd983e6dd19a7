#include "teratron/models/vlm/data/vlm_conversations.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "teratron/base/error.h"
#include "teratron/data/torch_randperm.h"
#include "teratron/models/gpt/sft/conversations.h"
#include "teratron/models/labelled_data/plain_encoder.h"

namespace teratron {

namespace {

int32_t padding_of(const SpecialTokens& special, int64_t image_token) {
  const int32_t pad = special.pad.value_or(special.eos.value_or(special.eod.value_or(0)));
  return pad == image_token ? 0 : pad;
}

bool learns(const TokenizedConversation& text) {
  // The first token is never a label.
  return text.is_learned.size() > 1 && std::any_of(text.is_learned.begin() + 1, text.is_learned.end(),
                                                   [](uint8_t one) { return one != 0; });
}

int64_t markers_in(const teratron::Conversation& conversation) {
  int64_t count = count_markers(conversation.text);
  for (const ChatMessage& message : conversation.chat.messages) count += count_markers(message.content);
  return count;
}

}  // namespace

struct VlmConversations::Line {
  std::vector<Conversation> conversations;
  std::vector<Problem> problems;
  int64_t dropped = 0, cut = 0;
};

// Templates leave the marker to the tokenizer.
void VlmConversations::check_tokenizer() const {
  std::vector<int32_t> ids;
  PlainEncoder(options_.tokenizer).encode(image_marker, ids);
  if (!chat_ || (ids.size() == 1 && ids[0] == options_.image_token)) return;
  throw config_error({.what = fmt::format("the tokenizer does not encode {} as the image token {}",
                                          image_marker, options_.image_token),
                      .where = "--image-token-id",
                      .fix = "Use the model's tokenizer, or --chat-template plain"});
}

std::vector<TokenizedConversation> VlmConversations::tokenized(
    const teratron::Conversation& conversation) const {
  if (chat_) return tokenize(conversation, *chat_, options_.tokenizer, LearnedTokens::answers);
  TokenizedConversation plain;
  if (const auto bos = options_.tokenizer.special().bos) plain.tokens.push_back(*bos);
  plain.tokens.insert(plain.tokens.end(), static_cast<size_t>(markers_in(conversation)),
                      static_cast<int32_t>(options_.image_token));
  plain.is_learned.assign(plain.tokens.size(), 0);
  std::string answer = conversation.text;
  for (size_t at = 0; (at = answer.find(image_marker)) != answer.npos;) answer.erase(at, image_marker.size());
  for (const ChatMessage& message : conversation.chat.messages) {
    if (message.role == "assistant") answer += message.content;
  }
  PlainEncoder(options_.tokenizer).encode(answer + "\n", plain.tokens);
  plain.is_learned.resize(plain.tokens.size(), 1);
  return {plain};
}

int64_t VlmConversations::length_of(const Conversation& conversation) const {
  return std::ssize(conversation.text.tokens) + std::ssize(conversation.images) * (options_.sizes.rows - 1);
}

// Cuts a conversation that is longer than a row, before the image that would be cut. Whether it still teaches
// something.
bool VlmConversations::fits(Conversation& conversation) const {
  int64_t length = 0, images = 0;
  size_t kept = 0;
  for (const int32_t token : conversation.text.tokens) {
    const bool is_image = token == options_.image_token;
    length += is_image ? options_.sizes.rows : 1;
    if (length > options_.sequence_length) break;
    images += is_image ? 1 : 0;
    ++kept;
  }
  conversation.text.tokens.resize(kept);
  conversation.text.is_learned.resize(kept);
  conversation.images.resize(static_cast<size_t>(images));
  return learns(conversation.text);
}

VlmConversations::Line VlmConversations::read(const JsonLine& json) const {
  Line line;
  const ImageLine parsed = read_image_line(json, line.problems);
  size_t first = 0;  // image of the conversation
  for (const teratron::Conversation& each : parse_conversations(parsed.text, json.where, line.problems)) {
    if (!line.problems.empty()) return line;
    const auto count = static_cast<size_t>(markers_in(each));
    for (TokenizedConversation& text : tokenized(each)) {
      const auto has = static_cast<size_t>(std::ranges::count(text.tokens, options_.image_token));
      if (has > count || first + count > parsed.images.size()) {
        line.problems.push_back({.what = fmt::format("the template writes {} images of {}", has, count),
                                 .where = json.where,
                                 .fix = "Use another template"});
        return line;
      }
      for (size_t i = 0; i < text.tokens.size(); ++i) {
        if (text.tokens[i] == options_.image_token) text.is_learned[i] = 0;
      }
      const auto begin = parsed.images.begin() + static_cast<std::ptrdiff_t>(first);
      Conversation own{std::move(text), {begin, begin + static_cast<std::ptrdiff_t>(has)}, json.where};
      if (length_of(own) > options_.sequence_length) {
        if (options_.overlong == OverlongConversations::error) {
          line.problems.push_back(
              {.what = fmt::format("a conversation of {} tokens, {} of them {} images, is longer than a row "
                                   "of {}",
                                   length_of(own), std::ssize(own.images) * options_.sizes.rows,
                                   own.images.size(), options_.sequence_length),
               .where = json.where,
               .fix = "Raise --seq-length, or give --sft-overlong truncate or drop"});
          return line;
        }
        if (options_.overlong == OverlongConversations::drop || !fits(own)) {
          ++line.dropped;
          continue;
        }
        ++line.cut;
      }
      line.conversations.push_back(std::move(own));
    }
    first += count;
  }
  return line;
}

VlmConversations::VlmConversations(const std::vector<JsonLine>& lines, const VlmConversationOptions& options,
                                   std::optional<int64_t> samples, bool shuffles)
    : options_(options), pad_(padding_of(options.tokenizer.special(), options.image_token)) {
  if (options.chat) chat_ = *options.chat;
  check_tokenizer();
  std::vector<Line> read_lines(lines.size());
  for_each_in_parallel(lines.size(), [&](size_t i) { read_lines[i] = read(lines[i]); });
  std::vector<Problem> problems;
  int64_t dropped = 0, cut = 0;
  for (Line& line : read_lines) {
    problems.insert(problems.end(), line.problems.begin(), line.problems.end());
    dropped += line.dropped;
    cut += line.cut;
    conversations_.insert(conversations_.end(), std::make_move_iterator(line.conversations.begin()),
                          std::make_move_iterator(line.conversations.end()));
  }
  if (!problems.empty()) throw UserError(ExitCode::data, problems_by_kind(std::move(problems)));
  if (conversations_.empty()) {
    throw data_error({.what = fmt::format("all {} conversations are longer than a row", dropped),
                      .where = "--data-path",
                      .fix = "Raise --seq-length"});
  }
  pack();
  order_.emplace(
      EpochOrder::Options{.count = std::ssize(rows_),
                          .samples = samples,
                          .shuffle = shuffles ? std::optional<uint64_t>(options.seed) : std::nullopt});
  size_t images = 0;
  for (const Conversation& each : conversations_) images += each.images.size();
  report_ = fmt::format("{} conversations with {} images in {} rows of {} tokens", conversations_.size(),
                        images, rows_.size(), options.sequence_length);
  if (cut > 0) report_ += fmt::format("; {} longer ones were truncated", cut);
  if (dropped > 0) report_ += fmt::format("; {} longer ones were dropped", dropped);
}

void VlmConversations::pack() {
  std::vector<int64_t> lengths;
  for (const Conversation& each : conversations_) lengths.push_back(length_of(each));
  if (options_.packing == SftPacking::best_fit) {
    const std::vector<int64_t> order = torch_randperm(std::ssize(conversations_), options_.seed);
    rows_ = pack_best_fit(order, lengths, options_.sequence_length);
    return;
  }
  for (int64_t i = 0; i < std::ssize(conversations_); ++i) rows_.push_back({i});
}

TokenizedConversation VlmConversations::expanded(const Conversation& conversation) const {
  TokenizedConversation whole;
  for (size_t i = 0; i < conversation.text.tokens.size(); ++i) {
    const int32_t token = conversation.text.tokens[i];
    const auto count = static_cast<size_t>(token == options_.image_token ? options_.sizes.rows : 1);
    whole.tokens.insert(whole.tokens.end(), count, token);
    whole.is_learned.insert(whole.is_learned.end(), count, conversation.text.is_learned[i]);
  }
  return whole;
}

void VlmConversations::get(int64_t i, const Sample& sample) const {
  std::vector<TokenizedConversation> texts;
  std::vector<std::pair<const std::string*, const std::string*>> images;  // and their places
  for (const int64_t index : rows_[static_cast<size_t>(order_->at(i))]) {
    const Conversation& conversation = conversations_[static_cast<size_t>(index)];
    texts.push_back(expanded(conversation));
    for (const std::string& image : conversation.images) images.emplace_back(&image, &conversation.where);
  }
  std::vector<const TokenizedConversation*> pointers;
  for (const TokenizedConversation& each : texts) pointers.push_back(&each);
  const PackedConversations row = pack_row(pointers, options_.sequence_length, pad_);
  std::ranges::copy(row.tokens, sample.i64("tokens").begin());
  std::ranges::copy(row.labels, sample.i64("labels").begin());
  std::ranges::copy(row.is_learned, sample.f32("loss_mask").begin());
  std::ranges::copy(row.starts, sample.i32("segment_start").begin());
  const std::span<int64_t> positions = sample.i64("position_ids");
  for (size_t p = 0; p < positions.size(); ++p) positions[p] = static_cast<int64_t>(p) - row.starts[p];
  if (!sample.has("image_rows")) return;
  number_image_rows(sample.i64("tokens"), options_.image_token, sample.i64("image_rows"));
  sample.i64("images")[0] = std::ssize(images);
  const std::span<float> values = sample.f32_items("pixel_values", std::ssize(images));
  const size_t each = images.empty() ? 0 : values.size() / images.size();
  for (size_t image = 0; image < images.size(); ++image)
    options_.images->read(*images[image].first, *images[image].second, values.subspan(image * each, each));
}

Datasets build_vlm_conversations(const VlmConversationOptions& options) {
  return datasets_of_json_lines(options.sources, [&](const std::vector<JsonLine>& lines, size_t split) {
    return std::make_shared<VlmConversations>(lines, options, options.sources.samples[split], split == 0);
  });
}

}  // namespace teratron
