#include "teratron/models/t5/data/t5_pairs.h"

#include <algorithm>
#include <iterator>

#include <fmt/ranges.h>

#include "teratron/models/gpt/sft/conversations.h"
#include "teratron/models/labelled_data/plain_encoder.h"
#include "teratron/tokenizer/decoder_start.h"

namespace teratron {

namespace {

constexpr const char* pair_forms = R"(Write {"prompt": "...", "completion": "..."})";

int32_t end_of_sequence(const SpecialTokens& special) {
  return special.eos.value_or(special.eod.value_or(special.sep.value_or(-1)));
}

void check_pair_tokens(const Tokenizer& tokenizer) {
  const SpecialTokens& special = tokenizer.special();
  std::vector<std::string_view> missing;
  if (!decoder_start(special)) missing.emplace_back("begin or padding");
  if (end_of_sequence(special) < 0) missing.emplace_back("end");
  if (missing.empty()) return;
  throw config_error({.what = fmt::format("the tokenizer has no {} token", fmt::join(missing, " and no ")),
                      .where = "--tokenizer-type",
                      .fix = "Use the tokenizer of a published T5"});
}

}  // namespace

void T5Pairs::add(Pair pair, const std::string& where, const T5PairOptions& options, Line& line) {
  const int64_t source = std::ssize(pair.source), answer = std::ssize(pair.answer);
  if (source > options.encoder_length || answer > options.decoder_length) {
    if (options.overlong == OverlongPairs::error) {
      line.problems.push_back(
          {.what = fmt::format("a question of {} and an answer of {} tokens have rows of {} and {}", source,
                               answer, options.encoder_length, options.decoder_length),
           .where = where,
           .fix = "Raise --seq-length and --decoder-seq-length, or give --sft-overlong truncate or drop"});
      return;
    }
    if (options.overlong == OverlongPairs::drop) {
      ++line.dropped;
      return;
    }
    pair.is_cut = true;
    const int32_t end = pair.source.back();
    pair.source.resize(static_cast<size_t>(std::min(source, options.encoder_length)));
    pair.source.back() = end;
    pair.answer.resize(static_cast<size_t>(std::min(answer, options.decoder_length)));
  }
  line.pairs.push_back(std::move(pair));
}

T5Pairs::Line T5Pairs::read(const JsonLine& json, const T5PairOptions& options) {
  Line line;
  const int32_t end = end_of_sequence(options.tokenizer.special());
  const PlainEncoder encoder(options.tokenizer);
  for (const Conversation& conversation : parse_conversations(json.text, json.where, line.problems)) {
    if (!conversation.text.empty()) {
      line.problems.push_back({.what = "a text alone has no question and no answer for a T5",
                               .where = json.where,
                               .fix = pair_forms});
      return line;
    }
    std::string before;
    for (const ChatMessage& message : conversation.chat.messages) {
      if (message.role == "assistant") {
        Pair pair;
        encoder.encode(before, pair.source);
        pair.source.push_back(end);
        encoder.encode(message.content, pair.answer);
        pair.answer.push_back(end);
        add(std::move(pair), json.where, options, line);
      }
      before += (before.empty() ? "" : "\n") + message.content;
    }
  }
  return line;
}

T5Pairs::T5Pairs(const std::vector<JsonLine>& lines, const T5PairOptions& options) {
  check_pair_tokens(options.tokenizer);
  const SpecialTokens& special = options.tokenizer.special();
  start_ = *decoder_start(special);
  pad_ = special.pad.value_or(end_of_sequence(special));
  std::vector<Line> read_lines(lines.size());
  for_each_in_parallel(lines.size(), [&](size_t i) { read_lines[i] = read(lines[i], options); });
  std::vector<Problem> problems;
  int64_t dropped = 0;
  for (Line& line : read_lines) {
    problems.insert(problems.end(), line.problems.begin(), line.problems.end());
    dropped += line.dropped;
    pairs_.insert(pairs_.end(), std::make_move_iterator(line.pairs.begin()),
                  std::make_move_iterator(line.pairs.end()));
  }
  if (!problems.empty()) throw UserError(ExitCode::data, problems_by_kind(std::move(problems)));
  if (pairs_.empty()) {
    throw data_error(
        {.what = fmt::format("all {} pairs are longer than their rows and were dropped", dropped),
         .where = "--data-path",
         .fix = "Raise --seq-length and --decoder-seq-length"});
  }
  order_.emplace(EpochOrder::Options{
      .count = std::ssize(pairs_), .samples = options.samples, .shuffle = options.shuffle});
  report_ = fmt::format("{} questions and answers in rows of {} and {} tokens", pairs_.size(),
                        options.encoder_length, options.decoder_length);
  if (const auto cut = std::ranges::count_if(pairs_, &Pair::is_cut); cut > 0)
    report_ += fmt::format("; {} longer ones were truncated", cut);
  if (dropped > 0) report_ += fmt::format("; {} longer ones were dropped", dropped);
}

void T5Pairs::get(int64_t i, const Sample& sample) const {
  const Pair& pair = pairs_[static_cast<size_t>(order_->at(i))];
  const std::span<int64_t> source = sample.i64("encoder_tokens"), target = sample.i64("decoder_tokens"),
                           labels = sample.i64("labels");
  std::ranges::fill(source, pad_);
  std::ranges::copy(pair.source, source.begin());
  sample.i64("encoder_length")[0] = std::ssize(pair.source);
  std::ranges::fill(target, pad_);
  target[0] = start_;
  std::copy(pair.answer.begin(), pair.answer.end() - 1, target.begin() + 1);
  std::ranges::fill(labels, 0);
  std::ranges::copy(pair.answer, labels.begin());
  const std::span<float> mask = sample.f32("loss_mask");
  std::ranges::fill(mask, 0.0F);
  std::fill_n(mask.begin(), pair.answer.size(), 1.0F);
}

Datasets build_t5_pairs(const DataSources& sources, const T5PairOptions& options) {
  return datasets_of_json_lines(sources, [&](const std::vector<JsonLine>& lines, size_t split) {
    return std::make_shared<T5Pairs>(lines,
                                     T5PairOptions{.encoder_length = options.encoder_length,
                                                   .decoder_length = options.decoder_length,
                                                   .overlong = options.overlong,
                                                   .samples = sources.samples[split],
                                                   .shuffle = split == 0 ? options.shuffle : std::nullopt,
                                                   .tokenizer = options.tokenizer});
  });
}

}  // namespace teratron
