#include "teratron/tasks/text/detokenizer.h"

#include <utility>

#include "teratron/base/error.h"
#include "teratron/tasks/text/python_text.h"

namespace teratron {

namespace {

using Replacement = std::pair<std::string_view, std::string_view>;

template <size_t N>
void apply(const Replacement (&rules)[N], std::string& text) {
  for (const auto& [from, to] : rules) text = replace_all(text, from, to);
}

// Removes the blanks inside of a pair: "( a b )" -> "(a b)". A pair ends at the first `close`.
std::string close_up(std::string_view text, char open, char close) {
  std::string out;
  while (true) {
    const size_t begin = text.find(open);
    const size_t end = begin == std::string_view::npos ? begin : text.find(close, begin + 1);
    if (end == std::string_view::npos) return out += text;
    out += text.substr(0, begin + 1);
    out += stripped(text.substr(begin + 1, end - begin - 1));
    out += close;
    text.remove_prefix(end + 1);
  }
}

// Megatron-LM writes this pattern, not the digit, into the text: its regexes are not applied to "/' 5/" as meant.
std::string with_digit_pattern(std::string_view text) {
  constexpr std::string_view before = "/' ", pattern = "/'[0-9]/";
  std::string out;
  size_t begin = 0;
  for (size_t found; (found = text.find(before, begin)) != std::string_view::npos;) {
    const size_t digit = found + before.size();
    const bool matches =
        digit + 1 < text.size() && text[digit] >= '0' && text[digit] <= '9' && text[digit + 1] == '/';
    const size_t end = matches ? digit + 2 : found + 1;
    out += text.substr(begin, found - begin);
    out += matches ? pattern : text.substr(found, 1);
    begin = end;
  }
  return out += text.substr(begin);
}

}  // namespace

std::string detokenize_wikitext(std::string_view text) {
  constexpr Replacement before_pairs[] = {{" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."},
                                          {" : ", ": "},  {" ; ", "; "},  {" . ", ". "},
                                          {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "}};
  constexpr Replacement after_pairs[] = {{"= = = =", "===="},    {"= = =", "==="}, {"= =", "=="},
                                         {" \u00b0 ", "\u00b0"}, {" \n", "\n"},    {"\n ", "\n"},
                                         {" N ", " 1 "},         {" 's", "'s"}};
  std::string out = with_digit_pattern(replace_all(text, "s '", "s'"));
  apply(before_pairs, out);
  constexpr std::pair<char, char> pairs[] = {{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}};
  for (const auto& [open, close] : pairs) out = close_up(out, open, close);
  apply(after_pairs, out);
  return out;
}

std::string detokenize_ptb(std::string_view text) {
  constexpr Replacement rules[] = {{" '", "'"},   {" \n", "\n"}, {"\n ", "\n"}, {" n't", "n't"},
                                   {" N ", "1 "}, {"$ 1", "$1"}, {"# 1", "#1"}};
  std::string out(text);
  apply(rules, out);
  return out;
}

std::string detokenize(std::string_view text, const std::string& path) {
  const auto has = [&](const char* word) { return path.find(word) != std::string::npos; };
  if (has("ptb")) return detokenize_ptb(text);
  if (has("wiki")) return detokenize_wikitext(text);
  if (has("lambada")) return std::string(text);
  throw config_error(
      {.what = "the path contains none of ptb, wiki and lambada, which name the rules by which its "
               "words are put together",
       .where = path,
       .fix = "Name the file after the corpus, such as wiki.test.tokens"});
}

std::string clean_text(std::string_view text) {
  std::string out = single_blanks(text);
  for (int i = 0; i < 3; ++i) out = replace_all(out, " . ", ". ");
  return out;
}

}  // namespace teratron
