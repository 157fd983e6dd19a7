// From files of JSON lines to rows of conversations.
#include <algorithm>
#include <numeric>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/data/blend.h"
#include "teratron/data/torch_randperm.h"
#include "teratron/models/gpt/sft/sft_dataset.h"
#include "teratron/models/labelled_data/json_lines.h"

namespace teratron {

namespace {

std::vector<std::string> files_of(const std::vector<std::string>& items) {
  const Blend blend = parse_data_path(items);
  if (blend.weights) {
    throw config_error({.what = "files of conversations have no weights",
                        .where = "--data-path",
                        .fix = "Give the files only; all their conversations are used"});
  }
  return blend.prefixes;
}

// The conversations of one line.
struct TokenizedLine {
  std::vector<TokenizedConversation> conversations;
  std::string where;
  std::vector<Problem> problems = {};
};

TokenizedLine tokenize_line(const JsonLine& line, const SftDataOptions& options) {
  TokenizedLine result{.where = line.where};
  for (const Conversation& each : parse_conversations(line.text, line.where, result.problems)) {
    try {
      result.conversations.push_back(tokenize(each, options.chat, options.tokenizer, options.learned));
    } catch (const UserError& error) {
      result.problems.insert(result.problems.end(), error.problems().begin(), error.problems().end());
    }
  }
  return result;
}

std::vector<TokenizedLine> tokenize_lines(std::span<const JsonLine> lines, const SftDataOptions& options) {
  std::vector<TokenizedLine> all(lines.size());
  for_each_in_parallel(lines.size(), [&](size_t i) { all[i] = tokenize_line(lines[i], options); });
  std::vector<Problem> problems;
  for (const TokenizedLine& each : all)
    problems.insert(problems.end(), each.problems.begin(), each.problems.end());
  if (!problems.empty()) throw UserError(ExitCode::data, std::move(problems));
  return all;
}

bool learns(const TokenizedConversation& conversation) {
  // The first token is never a label.
  return std::any_of(conversation.is_learned.begin() + 1, conversation.is_learned.end(),
                     [](uint8_t learned) { return learned != 0; });
}

void cut(TokenizedConversation& conversation, int64_t length) {
  conversation.tokens.resize(static_cast<size_t>(length));
  conversation.is_learned.resize(static_cast<size_t>(length));
}

// Sorts lines of conversations into rows.
class RowBuilder {
 public:
  explicit RowBuilder(const SftDataOptions& options) : options_(options) {}

  SftRows build(std::vector<TokenizedLine> lines) {
    for (TokenizedLine& line : lines) {
      options_.packing == SftPacking::lines ? add_line(line) : add_conversations(line);
    }
    if (!problems_.empty()) throw UserError(ExitCode::data, std::move(problems_));
    if (options_.packing == SftPacking::best_fit) pack();
    report();
    return std::move(result_);
  }

 private:
  // Megatron-LM's row: what does not fit is cut off.
  void add_line(TokenizedLine& line) {
    int64_t length = 0;
    for (const TokenizedConversation& each : line.conversations) length += std::ssize(each.tokens);
    if (!fits(length, line.where)) return;
    std::vector<int64_t>& row = result_.rows.emplace_back();
    for (TokenizedConversation& each : line.conversations) {
      row.push_back(std::ssize(result_.conversations));
      result_.conversations.push_back(std::move(each));
    }
    tokens_ += std::min(length, options_.sequence_length);
  }

  void add_conversations(TokenizedLine& line) {
    for (TokenizedConversation& each : line.conversations) {
      if (!fits(std::ssize(each.tokens), line.where)) continue;
      if (std::ssize(each.tokens) > options_.sequence_length) {
        cut(each, options_.sequence_length);
        if (!learns(each)) {
          --truncated_;
          ++dropped_;
          continue;
        }
      }
      tokens_ += std::ssize(each.tokens);
      result_.conversations.push_back(std::move(each));
    }
  }

  // Whether something of it goes into a row; counts what does not.
  bool fits(int64_t length, const std::string& where) {
    if (length <= options_.sequence_length) return true;
    if (options_.overlong == OverlongConversations::truncate) ++truncated_;
    if (options_.overlong == OverlongConversations::drop) ++dropped_;
    if (options_.overlong == OverlongConversations::error) {
      problems_.push_back({.what = fmt::format("a conversation of {} tokens is longer than a row of {}",
                                               length, options_.sequence_length),
                           .where = where,
                           .fix = "Raise --seq-length, or give --sft-overlong truncate or drop"});
    }
    return options_.overlong == OverlongConversations::truncate;
  }

  void pack() {
    std::vector<int64_t> lengths;
    for (const TokenizedConversation& each : result_.conversations)
      lengths.push_back(std::ssize(each.tokens));
    const std::vector<int64_t> order = torch_randperm(std::ssize(lengths), options_.seed);
    result_.rows = pack_best_fit(order, lengths, options_.sequence_length);
  }

  void report() {
    const int64_t rows = std::ssize(result_.rows);
    const double room = static_cast<double>(std::max<int64_t>(rows * options_.sequence_length, 1));
    result_.report = fmt::format("{} conversations in {} rows of {} tokens, {:.1f}% of which are used",
                                 result_.conversations.size(), rows, options_.sequence_length,
                                 100.0 * static_cast<double>(tokens_) / room);
    if (truncated_ > 0) result_.report += fmt::format("; {} longer ones were truncated", truncated_);
    if (dropped_ > 0) result_.report += fmt::format("; {} longer ones were dropped", dropped_);
  }

  const SftDataOptions& options_;
  SftRows result_;
  std::vector<Problem> problems_;
  int64_t tokens_ = 0, truncated_ = 0, dropped_ = 0;
};

int32_t pad_id(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  if (!chat.pad().empty()) tokenizer.encode(chat.pad(), ids);
  if (ids.size() == 1) return ids[0];
  const SpecialTokens& special = tokenizer.special();
  return special.pad.value_or(special.eod.value_or(0));
}

std::shared_ptr<const Dataset> build_split(std::span<const JsonLine> lines, size_t split,
                                           const SftDataOptions& options) {
  SftRows rows = RowBuilder(options).build(tokenize_lines(lines, options));
  if (rows.rows.empty()) {
    const std::string what = fmt::format("the {} split has no conversations", kSplitNames[split]);
    if (split == 0)
      throw data_error({.what = what, .where = "--data-path", .fix = "Add data or change --split"});
    warn("{}; skipping it", what);
    return nullptr;
  }
  const bool shuffles = split == 0;
  return std::make_shared<SftDataset>(
      std::make_shared<const SftRows>(std::move(rows)),
      SftDataset::Options{.sequence_length = options.sequence_length,
                          .samples = options.sources.samples[split],
                          .shuffle = shuffles ? std::optional<uint64_t>(options.seed) : std::nullopt,
                          .pad = pad_id(options.chat, options.tokenizer)});
}

}  // namespace

Datasets build_sft_datasets(const SftDataOptions& options) {
  const DataSources& sources = options.sources;
  std::vector<Problem> problems = source_problems(sources);
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
  std::array<std::shared_ptr<const Dataset>, 3> built;
  const bool shared = !sources.data_path.empty();
  const std::vector<JsonLine> all =
      shared ? read_json_lines(files_of(sources.data_path)) : std::vector<JsonLine>();
  const auto ranges = split_ranges(parse_split(sources.split), std::ssize(all));
  for (size_t split = 0; split < built.size(); ++split) {
    if (sources.samples[split] == 0) continue;
    if (shared && ranges[split]) {
      const auto [first, last] = *ranges[split];
      const std::span lines =
          std::span(all).subspan(static_cast<size_t>(first), static_cast<size_t>(last - first));
      built[split] = build_split(lines, split, options);
    } else if (!shared && !sources.split_data_path[split].empty()) {
      built[split] = build_split(read_json_lines(files_of(sources.split_data_path[split])), split, options);
    }
  }
  return {built[0], built[1], built[2]};
}

}  // namespace teratron
