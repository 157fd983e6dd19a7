// From files of JSON lines to rows of conversations.
#include <algorithm>
#include <numeric>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/data/text/line_reader.h"
#include "teratron/data/torch_randperm.h"
#include "teratron/models/gpt/sft/sft_dataset.h"
#include "teratron/models/labelled_data/json_lines.h"

namespace teratron {

namespace {

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
      for (TokenizedConversation& part : tokenize(each, options.chat, options.tokenizer, options.learned))
        result.conversations.push_back(std::move(part));
    } catch (const UserError& error) {
      result.problems.insert(result.problems.end(), error.problems().begin(), error.problems().end());
    }
  }
  return result;
}

std::vector<TokenizedLine> tokenize_lines(std::span<const JsonLine> lines, const SftDataOptions& options,
                                          IndexProgress& progress) {
  std::vector<TokenizedLine> all(lines.size());
  for_each_in_parallel(lines.size(), [&](size_t i) {
    progress.set("conversations", static_cast<int64_t>(i), std::ssize(lines));
    all[i] = tokenize_line(lines[i], options);
  });
  std::vector<Problem> problems;
  for (const TokenizedLine& each : all)
    problems.insert(problems.end(), each.problems.begin(), each.problems.end());
  if (!problems.empty()) throw UserError(ExitCode::data, problems_by_kind(std::move(problems)));
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

  CachedIndex build(std::vector<TokenizedLine> lines) {
    for (TokenizedLine& line : lines) {
      options_.packing == SftPacking::lines ? add_line(line) : add_conversations(line);
    }
    if (!problems_.empty()) throw UserError(ExitCode::data, problems_by_kind(std::move(problems_)));
    if (options_.packing == SftPacking::best_fit) pack();
    return {.numbers = {{"report", report()}}, .arrays = arrays()};
  }

 private:
  // Megatron-LM's row: what does not fit is cut off.
  void add_line(TokenizedLine& line) {
    int64_t length = 0;
    for (const TokenizedConversation& each : line.conversations) length += std::ssize(each.tokens);
    if (!fits(length, line.where)) return;
    std::vector<int64_t>& row = rows_.emplace_back();
    for (TokenizedConversation& each : line.conversations) {
      row.push_back(std::ssize(conversations_));
      conversations_.push_back(std::move(each));
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
      conversations_.push_back(std::move(each));
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
    for (const TokenizedConversation& each : conversations_) lengths.push_back(std::ssize(each.tokens));
    const std::vector<int64_t> order = torch_randperm(std::ssize(lengths), options_.seed);
    rows_ = pack_best_fit(order, lengths, options_.sequence_length);
  }

  std::string report() const {
    const int64_t rows = std::ssize(rows_);
    const double room = static_cast<double>(std::max<int64_t>(rows * options_.sequence_length, 1));
    std::string text = fmt::format("{} conversations in {} rows of {} tokens, {:.1f}% of which are used",
                                   conversations_.size(), rows, options_.sequence_length,
                                   100.0 * static_cast<double>(tokens_) / room);
    if (truncated_ > 0) text += fmt::format("; {} longer ones were truncated", truncated_);
    if (dropped_ > 0) text += fmt::format("; {} longer ones were dropped", dropped_);
    return text;
  }

  // What SftRows reads.
  std::vector<IndexArray> arrays() const {
    std::vector<int32_t> tokens;
    std::vector<int64_t> starts = {0}, rows = {0};
    for (const std::vector<int64_t>& row : rows_) {
      for (const int64_t i : row) {
        const TokenizedConversation& each = conversations_[static_cast<size_t>(i)];
        for (size_t t = 0; t < each.tokens.size(); ++t)
          tokens.push_back(each.is_learned[t] != 0 ? each.tokens[t] : -1 - each.tokens[t]);
        starts.push_back(std::ssize(tokens));
      }
      rows.push_back(std::ssize(starts) - 1);
    }
    return {IndexArray(std::move(tokens)), IndexArray(std::move(starts)), IndexArray(std::move(rows))};
  }

  const SftDataOptions& options_;
  std::vector<TokenizedConversation> conversations_;
  std::vector<std::vector<int64_t>> rows_;  // indices of conversations
  std::vector<Problem> problems_;
  int64_t tokens_ = 0, truncated_ = 0, dropped_ = 0;
};

int32_t pad_id(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  try {
    if (!chat.pad().empty()) tokenizer.encode(chat.pad(), ids);
  } catch (const UserError&) {  // NullTokenizer knows no words
    ids.clear();
  }
  if (ids.size() == 1) return ids[0];
  const SpecialTokens& special = tokenizer.special();
  return special.pad.value_or(special.eod.value_or(0));
}

/// The lines of some files that one split or several share, read when the first needs them.
class SplitLines {
 public:
  explicit SplitLines(std::vector<std::string> files) : files_(expand_patterns(files)) {}

  std::span<const JsonLine> all() {
    if (!lines_) lines_ = read_json_lines(files_);
    return *lines_;
  }
  /// The lines of a split with a share.
  std::span<const JsonLine> part(const std::array<double, 3>& shares, size_t split) {
    const SequenceRange range = split_ranges(shares, std::ssize(all()))[split].value();
    return all().subspan(static_cast<size_t>(range.first), static_cast<size_t>(range.size()));
  }
  IndexSource source(size_t split) const {
    nlohmann::json files = nlohmann::json::array();
    for (const std::string& file : files_) files.push_back(fingerprint(BinaryReader(file)));
    return {.name = fmt::format("the conversations of {} ({} split)", files_.front(), kSplitNames[split]),
            .folder = files_.front() + ".cache",
            .content = {{"files", std::move(files)}}};
  }

 private:
  std::vector<std::string> files_;
  std::optional<std::vector<JsonLine>> lines_;
};

/// All that the rows depend on besides the files.
nlohmann::json describe(const SftDataOptions& options) {
  return {{"sequence_length", options.sequence_length},   {"seed", options.seed},
          {"packing", static_cast<int>(options.packing)}, {"overlong", static_cast<int>(options.overlong)},
          {"learned", static_cast<int>(options.learned)}, {"chat", options.chat.fingerprint()},
          {"tokenizer", options.tokenizer_fingerprint}};
}

/// `shares`: of the splits, if they share the files.
std::shared_ptr<const Dataset> build_split(SplitLines& lines, size_t split,
                                           const std::optional<std::array<double, 3>>& shares,
                                           const SftDataOptions& options) {
  IndexCacheKey key{
      .kind = "sft", .description = describe(options), .arrays = {"tokens", "conversations", "rows"}};
  if (shares) key.description["part"] = {*shares, split};
  const CachedIndex index =
      cached_index(lines.source(split), key, options.cache, [&](IndexProgress& progress) {
        return RowBuilder(options).build(
            tokenize_lines(shares ? lines.part(*shares, split) : lines.all(), options, progress));
      });
  SftRows rows{.tokens = index.arrays[0],
               .conversations = index.arrays[1],
               .rows = index.arrays[2],
               .report = index.numbers.at("report")};
  if (rows.size() == 0) {
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
  std::optional<SplitLines> shared;
  if (!sources.data_path.empty()) shared.emplace(json_files_of(sources.data_path));
  const std::array<double, 3> shares = parse_split(sources.split);
  for (size_t split = 0; split < built.size(); ++split) {
    if (sources.samples[split] == 0) continue;
    if (shared && shares[split] != 0) {
      built[split] = build_split(*shared, split, shares, options);
    } else if (!shared && !sources.split_data_path[split].empty()) {
      SplitLines lines(json_files_of(sources.split_data_path[split]));
      built[split] = build_split(lines, split, {}, options);
    }
  }
  return {built[0], built[1], built[2]};
}

}  // namespace teratron
