#include "teratron/data/text/punkt.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/strings.h"
#include "teratron/data/text/punkt_english.h"
#include "teratron/tokenizer/text/regex_split.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

namespace {

// Bits of the orthographic context: case of a word at the beginning of a sentence, inside one, or unknown.
constexpr int kMiddleUpper = 1 << 2;
constexpr int kBeginLower = 1 << 4;
constexpr int kUpper = 1 << 1 | kMiddleUpper | 1 << 3;
constexpr int kLower = kBeginLower | 1 << 5 | 1 << 6;

constexpr std::string_view kClosing = "\"')]}‘’“”«»";
constexpr std::string_view kAfterWord = ")\";}]*:@'({[!?‘’“”«»";
constexpr std::string_view kNonWord = R"x([)";}\]*:@'({\[!?‘’“”«»])x";
constexpr std::string_view kMultiChar = R"((?:-{2,}|\.{2,}|(?:\.\s){2,}\.))";
constexpr int64_t kPieceCharacters = 1000000;

/// The first character of a non-empty text.
std::string_view first_character(std::string_view text) {
  return text.substr(0, unicode::sequence_bytes(text[0]));
}

bool is_one_of(std::string_view character, std::string_view set) {
  return set.find(character) != std::string_view::npos;
}

bool is_blank(uint32_t code) {
  return (unicode::characters()[code] & unicode::python_split) != 0;
}

/// Bytes of the leading characters of a text that satisfy `predicate`.
template <class Predicate>
size_t prefix_size(std::string_view text, const Predicate& predicate) {
  size_t bytes = 0;
  while (bytes < text.size() && predicate(first_character(text.substr(bytes))))
    bytes += first_character(text.substr(bytes)).size();
  return bytes;
}

std::string_view without_trailing_blanks(std::string_view text) {
  const char* end = text.data() + text.size();
  while (end > text.data()) {
    const char* before = end;
    if (!is_blank(unicode::previous(text.data(), before))) break;
    end = before;
  }
  return text.substr(0, static_cast<size_t>(end - text.data()));
}

enum class Case : uint8_t { none, upper, lower };

Case case_of_first(std::string_view token) {
  const char* p = token.data();
  const uint32_t code = unicode::next(p);
  std::string lower;
  unicode::append_lower(code, lower);
  if (lower != token.substr(0, static_cast<size_t>(p - token.data()))) return Case::upper;
  return (unicode::characters()[code] & unicode::python_cased) != 0 ? Case::lower : Case::none;
}

/// A letter and a period.
bool is_initial(std::string_view token) {
  const char* p = token.data();
  const uint16_t flags = unicode::characters()[unicode::next(p)];
  return token.substr(static_cast<size_t>(p - token.data())) == "." && (flags & unicode::word) != 0 &&
         (flags & unicode::number) == 0;
}

std::string without_period(std::string word) {
  if (word.size() > 1 && word.back() == '.') word.pop_back();
  return word;
}

struct Token {
  std::string text;
  std::string type;  // lower case; all numbers share one type
  bool sentence_break = false;
  bool abbreviation = false;
  bool ellipsis = false;

  bool ends_in_period() const { return text.ends_with('.'); }
  std::string type_without_sentence_period() const { return sentence_break ? without_period(type) : type; }
};

/// A possible sentence end.
struct Candidate {
  size_t start, end;           // of the match
  std::string_view after;      // the text up to the end of the next token
  std::optional<size_t> next;  // start of the next token, if white space separates it
};

struct Slice {
  size_t start, end;
};

std::unordered_set<std::string> set_of(std::string_view list) {
  const std::vector<std::string> words = split(list);
  return {words.begin(), words.end()};
}

/// The lines of a file that are not empty.
std::vector<std::string> read_lines(const std::filesystem::path& path) {
  std::vector<std::string> lines = split(read_text(path, {.kind = ExitCode::data}), '\n');
  for (std::string& line : lines) {
    if (line.ends_with('\r')) line.pop_back();
  }
  std::erase(lines, "");
  return lines;
}

/// The two columns of a line.
std::pair<std::string, std::string> columns(const std::string& line, const std::filesystem::path& path) {
  const size_t tab = line.find('\t');
  if (tab == std::string::npos) {
    throw data_error({.what = fmt::format("the line \"{}\" has no tab", printable(line, 80)),
                      .where = path.string(),
                      .fix = "Use a model in nltk's punkt_tab format"});
  }
  return {line.substr(0, tab), line.substr(tab + 1)};
}

}  // namespace

struct PunktSplitter::Model {
  std::unordered_set<std::string> abbreviations;
  std::unordered_set<std::string> starters;
  std::set<std::pair<std::string, std::string>> collocations;
  std::unordered_map<std::string, int> context;
  Regex candidate;
  Regex word;
  Regex number;

  explicit Model(SentenceWhitespace whitespace)
      : candidate(whitespace == SentenceWhitespace::drop ? fmt::format(R"([.?!](?={}|\s+\S))", kNonWord)
                                                         : fmt::format(R"(\S*[.?!]\s*(?={}|\S))", kNonWord),
                  "sentence splitter", RegexSyntax::pcre2),
        word(fmt::format(R"({1}|(?=[^("`{{\[:;&#*@)}}\]\-,])\S+?(?=\s|$|{0}|{1}|,(?=$|\s|{0}|{1}))|\S)",
                         kNonWord, kMultiChar),
             "sentence splitter", RegexSyntax::pcre2),
        number(R"(^-?[.,]?\d[\d,.\-]*\.?$)", "sentence splitter", RegexSyntax::pcre2) {}

  void read(const std::filesystem::path& folder);
  int context_of(const std::string& type) const {
    const auto found = context.find(type);
    return found == context.end() ? 0 : found->second;
  }

  std::vector<Slice> split(std::string_view text) const;
  std::vector<Candidate> candidates(std::string_view text) const;
  std::vector<std::string> contexts(std::string_view text, std::vector<Candidate>& found) const;
  std::vector<Token> tokens_of(std::string_view text) const;
  bool has_break(std::string_view context) const;
  void annotate(Token& token) const;
  void annotate_pair(Token& token, const Token& next) const;
  std::optional<bool> starts_sentence(const Token& token) const;
};

void PunktSplitter::Model::read(const std::filesystem::path& folder) {
  for (std::string& line : read_lines(folder / "abbrev_types.txt")) abbreviations.insert(std::move(line));
  for (std::string& line : read_lines(folder / "sent_starters.txt")) starters.insert(std::move(line));
  const auto collocation_file = folder / "collocations.tab";
  for (const std::string& line : read_lines(collocation_file))
    collocations.insert(columns(line, collocation_file));
  const auto context_file = folder / "ortho_context.tab";
  for (const std::string& line : read_lines(context_file)) {
    const auto [word_type, bits] = columns(line, context_file);
    int value = 0;
    const auto [end, error] = std::from_chars(bits.data(), bits.data() + bits.size(), value);
    if (error != std::errc() || end != bits.data() + bits.size()) {
      throw data_error({.what = fmt::format("\"{}\" is not a number", printable(bits, 40)),
                        .where = context_file.string()});
    }
    context[word_type] = value;
  }
}

std::vector<Candidate> PunktSplitter::Model::candidates(std::string_view text) const {
  std::vector<Candidate> found;
  for (const Regex::Piece& piece : candidate.find_all(text)) {
    if (!piece.is_match) continue;
    Candidate match{
        .start = static_cast<size_t>(piece.text.data() - text.data()), .end = 0, .after = {}, .next = {}};
    match.end = match.start + piece.text.size();
    if (const auto next = first_character(text.substr(match.end)); is_one_of(next, kAfterWord)) {
      match.after = next;
    } else {
      const char* const limit = text.data() + text.size();
      const char* p = text.data() + match.end;
      const auto skip = [&](bool blanks) {
        while (p < limit) {
          const char* after = p;
          if (is_blank(unicode::next(after)) != blanks) break;
          p = after;
        }
      };
      skip(true);
      match.next = static_cast<size_t>(p - text.data());
      skip(false);
      match.after = text.substr(match.end, static_cast<size_t>(p - text.data()) - match.end);
    }
    found.push_back(match);
  }
  return found;
}

/// The context that decides about each candidate; of several candidates inside one word only the last counts.
std::vector<std::string> PunktSplitter::Model::contexts(std::string_view text,
                                                        std::vector<Candidate>& found) const {
  std::vector<std::string> contexts;
  std::vector<Candidate> kept;
  Slice previous{0, 0};
  const auto keep = [&](const Candidate& match) {
    kept.push_back(match);
    contexts.push_back(std::string(text.substr(previous.start, previous.end - previous.start)) +
                       std::string(text.substr(match.start, match.end - match.start)) +
                       std::string(match.after));
  };
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string_view before = text.substr(previous.end, found[i].start - previous.end);
    const size_t blank = before.find_last_of(" \t\n\r\v\f");
    const bool has_blank = blank != std::string_view::npos && blank != 0;
    const Slice word_slice{has_blank ? previous.end + blank + 1 : previous.start, found[i].start};
    if (i > 0 && previous.end <= word_slice.start) keep(found[i - 1]);
    previous = word_slice;
  }
  if (!found.empty()) keep(found.back());
  found = std::move(kept);
  return contexts;
}

std::vector<Token> PunktSplitter::Model::tokens_of(std::string_view text) const {
  std::vector<Token> tokens;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    for (const Regex::Piece& piece : word.find_all(text.substr(start, end - start))) {
      if (!piece.is_match) continue;
      Token token{.text = std::string(piece.text), .type = unicode::python_lower(piece.text)};
      const auto numeric = number.find_all(token.type);
      if (!numeric.empty() && numeric.front().is_match) token.type = "##number##";
      tokens.push_back(std::move(token));
    }
    start = end + 1;
  }
  return tokens;
}

void PunktSplitter::Model::annotate(Token& token) const {
  if (token.text == "." || token.text == "?" || token.text == "!") {
    token.sentence_break = true;
  } else if (token.text.starts_with("..") && token.text.find_first_not_of('.') == std::string::npos) {
    token.ellipsis = true;
  } else if (token.ends_in_period() && !token.text.ends_with("..")) {
    const std::string lower = unicode::python_lower(token.text.substr(0, token.text.size() - 1));
    token.abbreviation =
        abbreviations.contains(lower) || abbreviations.contains(lower.substr(lower.rfind('-') + 1));
    token.sentence_break = !token.abbreviation;
  }
}

/// Whether the case of the token shows that it starts a sentence; nothing if it is undecided.
std::optional<bool> PunktSplitter::Model::starts_sentence(const Token& token) const {
  if (token.text.size() == 1 && std::string_view(";:,.!?").find(token.text[0]) != std::string_view::npos)
    return false;
  const int seen = context_of(token.type_without_sentence_period());
  const Case first = case_of_first(token.text);
  if (first == Case::upper && (seen & kLower) != 0 && (seen & kMiddleUpper) == 0) return true;
  if (first == Case::lower && ((seen & kUpper) != 0 || (seen & kBeginLower) == 0)) return false;
  return {};
}

void PunktSplitter::Model::annotate_pair(Token& token, const Token& next) const {
  if (!token.ends_in_period()) return;
  const std::string type = without_period(token.type);
  const std::string next_type = next.type_without_sentence_period();
  const bool initial = is_initial(token.text);
  const auto is_abbreviation = [&] {
    token.sentence_break = false;
    token.abbreviation = true;
  };
  if (collocations.contains({type, next_type})) return is_abbreviation();
  const bool next_upper = case_of_first(next.text) == Case::upper;
  if ((token.abbreviation || token.ellipsis) && !initial) {
    if (starts_sentence(next) == true || (next_upper && starters.contains(next_type))) {
      token.sentence_break = true;
      return;
    }
  }
  if (!initial && type != "##number##") return;
  const auto starts = starts_sentence(next);
  const bool never_lower = initial && next_upper && (context_of(next_type) & kLower) == 0;
  if (starts == false || (!starts && never_lower)) is_abbreviation();
}

bool PunktSplitter::Model::has_break(std::string_view context) const {
  std::vector<Token> tokens = tokens_of(context);
  for (Token& token : tokens) annotate(token);
  for (size_t i = 0; i + 1 < tokens.size(); ++i) annotate_pair(tokens[i], tokens[i + 1]);
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (tokens[i].sentence_break) return true;
  }
  return false;
}

std::vector<Slice> PunktSplitter::Model::split(std::string_view text) const {
  std::vector<Candidate> found = candidates(text);
  const auto around = contexts(text, found);
  std::vector<Slice> slices;
  size_t start = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!has_break(around[i])) continue;
    slices.push_back({start, found[i].end});
    start = found[i].next.value_or(found[i].end);
  }
  slices.push_back({start, std::max(start, without_trailing_blanks(text).size())});
  // Closing quotes and brackets after the period belong to the preceding sentence.
  std::vector<Slice> aligned;
  size_t shift = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    Slice slice{slices[i].start + shift, slices[i].end};
    shift = 0;
    if (i + 1 < slices.size()) {
      const Slice& next = slices[i + 1];
      const std::string_view following = text.substr(next.start, next.end - next.start);
      const size_t closing =
          prefix_size(following, [](std::string_view c) { return is_one_of(c, kClosing); });
      const size_t blanks = closing + prefix_size(following.substr(closing), [](std::string_view c) {
                              const char* p = c.data();
                              return is_blank(unicode::next(p));
                            });
      const bool ends =
          blanks > closing || closing == following.size() || following.substr(closing).starts_with("--");
      if (closing > 0 && ends) {
        slice.end = next.start + closing;
        shift = blanks;
        aligned.push_back(slice);
        continue;
      }
    }
    if (slice.end > slice.start) aligned.push_back(slice);
  }
  return aligned;
}

PunktSplitter::PunktSplitter(const std::string& folder, SentenceWhitespace whitespace) {
  auto model = std::make_unique<Model>(whitespace);
  model->read(folder);
  model_ = std::move(model);
}

PunktSplitter::PunktSplitter(std::unique_ptr<const Model> model) : model_(std::move(model)) {}
PunktSplitter::PunktSplitter(PunktSplitter&&) noexcept = default;
PunktSplitter::~PunktSplitter() = default;

PunktSplitter PunktSplitter::english(SentenceWhitespace whitespace) {
  auto model = std::make_unique<Model>(whitespace);
  model->abbreviations = set_of(kEnglishAbbreviations);
  model->starters = set_of(kEnglishStarters);
  return PunktSplitter(std::move(model));
}

std::vector<std::string> PunktSplitter::split(std::string_view text) const {
  std::vector<std::string> sentences;
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const char* const start = p;
    for (int64_t i = 0; i < kPieceCharacters && p < end; ++i) unicode::next(p);
    const std::string_view piece(start, static_cast<size_t>(p - start));
    for (const Slice& slice : model_->split(piece))
      sentences.emplace_back(piece.substr(slice.start, slice.end - slice.start));
  }
  return sentences;
}

}  // namespace teratron
