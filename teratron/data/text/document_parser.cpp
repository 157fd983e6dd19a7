#include "teratron/data/text/document_parser.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include <simdjson.h>

#include "teratron/base/error.h"
#include "teratron/data/text/python_json.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

namespace {

using simdjson::dom::element;

/// A line that cannot become a document; caught per line.
struct WrongLine {
  std::string what;
};

class BlockTokenizer {
 public:
  BlockTokenizer(const PreprocessOptions& options, const Tokenizer& tokenizer, TokenizedBlock& result)
      : options_(options), tokenizer_(tokenizer), result_(result) {}

  /// `line` is followed by at least SIMDJSON_PADDING readable bytes.
  void add_line(std::string_view line, int64_t number) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      ++result_.blank_lines;
      return;
    }
    Marks marks = mark();
    try {
      add_object(line);
    } catch (const WrongLine& wrong) {
      roll_back(marks);
      result_.bad.push_back({number, wrong.what});
    }
  }

 private:
  struct Mark {
    size_t tokens, sequences, documents;
  };
  using Marks = std::vector<Mark>;

  Marks mark() const {
    Marks marks;
    for (const TokenizedKey& key : result_.keys) {
      marks.push_back({key.tokens.size(), key.sequence_lengths.size(), key.document_sequences.size()});
    }
    return marks;
  }

  void roll_back(const Marks& marks) {
    for (size_t i = 0; i < marks.size(); ++i) {
      result_.keys[i].tokens.resize(marks[i].tokens);
      result_.keys[i].sequence_lengths.resize(marks[i].sequences);
      result_.keys[i].document_sequences.resize(marks[i].documents);
    }
  }

  void add_object(std::string_view line) {
    const element root = parse(line);
    simdjson::dom::object object;
    if (root.get(object)) throw WrongLine{"not a JSON object"};
    for (size_t i = 0; i < options_.json_keys.size(); ++i) {
      add_document(find(object, options_.json_keys[i]), options_.json_keys[i], result_.keys[i]);
    }
  }

  element parse(std::string_view line) {
    element root;
    const auto error = parser_.parse(line.data(), line.size(), false).get(root);
    halves_ = false;
    if (!error) return root;
    if (const auto plain = without_python_json(line)) {
      halves_ = true;
      if (!parser_.parse(*plain).get(root)) return root;
    }
    if (line.starts_with("\xef\xbb\xbf")) throw WrongLine{"the line begins with a byte order mark"};
    std::string_view reason = simdjson::error_message(error);
    if (reason.ends_with('.')) reason.remove_suffix(1);
    throw WrongLine{fmt::format("broken JSON: {}", reason)};
  }

  /// The last value of the key counts, as in Python.
  static element find(simdjson::dom::object object, const std::string& key) {
    std::optional<element> last;
    for (const auto field : object) {
      if (field.key == key) last = field.value;
    }
    if (!last) throw WrongLine{fmt::format("no key \"{}\"", printable(key))};
    return *last;
  }

  void add_document(element value, const std::string& name, TokenizedKey& key) {
    const size_t first_sequence = key.sequence_lengths.size();
    std::string_view text;
    simdjson::dom::array list;
    if (!value.get(text)) {
      add_text(text, key);
    } else if (!value.get(list)) {
      for (const element item : list) {
        if (item.get(text))
          throw WrongLine{fmt::format("a list under \"{}\" holds something that is no text", name)};
        add_sequence(text, key);
      }
    } else {
      throw WrongLine{fmt::format("\"{}\" is no text", printable(name))};
    }
    if (options_.append_eod && key.sequence_lengths.size() > first_sequence) {
      key.tokens.push_back(*tokenizer_.special().eod);
      ++key.sequence_lengths.back();
    }
    key.document_sequences.push_back(static_cast<int32_t>(key.sequence_lengths.size() - first_sequence));
  }

  void add_text(std::string_view text, TokenizedKey& key) {
    if (!options_.split_sentences) {
      add_sequence(text, key);
      return;
    }
    if (!options_.splitter) throw WrongLine{"the text is not split into sentences"};
    for (const std::string& sentence : options_.splitter(text)) add_sequence(sentence, key);
  }

  void add_sequence(std::string_view text, TokenizedKey& key) {
    const size_t before = key.tokens.size();
    if (halves_ && text.find(kHalfPair) != text.npos) {
      throw WrongLine{"the text has half of a surrogate pair (\\ud800 to \\udfff), which is no character"};
    }
    try {
      tokenizer_.encode(text, key.tokens);
    } catch (const UserError& error) {
      throw WrongLine{error.what()};
    }
    const size_t count = key.tokens.size() - before;
    if (count == 0) return;
    if (count >= static_cast<size_t>(std::numeric_limits<int32_t>::max())) throw WrongLine{"too many tokens"};
    key.sequence_lengths.push_back(static_cast<int32_t>(count));
  }

  const PreprocessOptions& options_;
  const Tokenizer& tokenizer_;
  TokenizedBlock& result_;
  simdjson::dom::parser parser_;
  bool halves_ = false;  // the line was made plain: a text may have halves of surrogate pairs
};

}  // namespace

TokenizedBlock tokenize_block(LineBlock block, const PreprocessOptions& options, const Tokenizer& tokenizer) {
  TokenizedBlock result;
  result.file = block.file;
  result.keys.resize(options.json_keys.size());
  if (block.too_long != 0) {
    result.bad.push_back({block.too_long, fmt::format("longer than {} bytes", options.max_line_bytes)});
    return result;
  }
  const size_t size = block.text.size();
  block.text.append(simdjson::SIMDJSON_PADDING, '\0');
  BlockTokenizer lines(options, tokenizer, result);
  int64_t number = block.first_line;
  for (size_t start = 0; start < size; ++number) {
    const size_t end = block.text.find('\n', start);
    lines.add_line(std::string_view(block.text).substr(start, end - start), number);
    start = end + 1;
  }
  return result;
}

}  // namespace teratron
