#include <algorithm>
#include <unordered_map>

#include "teratron/tokenizer/unicode/unicode.h"
#include "teratron/tokenizer/unicode/unicode_tables.h"

namespace teratron::unicode {
namespace {

using Replacements = std::unordered_map<uint32_t, std::span<const uint32_t>>;

// Hangul syllables are composed by arithmetic (The Unicode Standard, section 3.12).
constexpr uint32_t kSyllables = 0xac00;
constexpr uint32_t kLeads = 0x1100;
constexpr uint32_t kVowels = 0x1161;
constexpr uint32_t kTails = 0x11a7;  // one before the first tail: "no tail"
constexpr uint32_t kLeadCount = 19;
constexpr uint32_t kVowelCount = 21;
constexpr uint32_t kTailCount = 28;
constexpr uint32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

// Below this nothing composes; NFC is the identity.
constexpr uint32_t kFirstMark = 0x300;

Replacements make_replacements(std::span<const uint32_t> base, std::span<const uint32_t> difference = {}) {
  Replacements out;
  for (const auto table : {base, difference}) {
    for (size_t i = 0; i < table.size(); i += 2 + table[i + 1])
      out[table[i]] = table.subspan(i + 2, table[i + 1]);
  }
  return out;
}

std::unordered_map<uint32_t, uint32_t> make_classes() {
  const std::span<const uint32_t> table = unicode_tables::combining_classes;
  std::unordered_map<uint32_t, uint32_t> out;
  for (size_t i = 0; i < table.size(); i += 2) out[table[i]] = table[i + 1];
  return out;
}

uint64_t pair_key(uint32_t first, uint32_t second) {
  return static_cast<uint64_t>(first) << 32 | second;
}

std::unordered_map<uint64_t, uint32_t> make_compositions() {
  const std::span<const uint32_t> table = unicode_tables::compositions;
  std::unordered_map<uint64_t, uint32_t> out;
  for (size_t i = 0; i < table.size(); i += 3) out[pair_key(table[i], table[i + 1])] = table[i + 2];
  return out;
}

struct Mark {
  uint32_t code;
  uint32_t combining_class;
  int32_t characters = 0;  // as in Change
};

uint32_t combining_class(uint32_t code) {
  static const std::unordered_map<uint32_t, uint32_t> classes = make_classes();
  if (code < kFirstMark) return 0;
  const auto found = classes.find(code);
  return found == classes.end() ? 0 : found->second;
}

void decompose(uint32_t code, const Replacements& replacements, std::vector<Mark>& out) {
  if (code - kSyllables < kSyllableCount) {
    const uint32_t index = code - kSyllables;
    out.push_back({kLeads + index / (kVowelCount * kTailCount), 0});
    out.push_back({kVowels + index / kTailCount % kVowelCount, 0, 1});
    if (index % kTailCount != 0) out.push_back({kTails + index % kTailCount, 0, 1});
    return;
  }
  const auto found = replacements.find(code);
  if (found == replacements.end()) {
    out.push_back({code, combining_class(code)});
    return;
  }
  for (const uint32_t& part : found->second)
    out.push_back({part, combining_class(part), &part == found->second.data() ? 0 : 1});
}

/// Full decomposition with marks in canonical order.
std::vector<Mark> decomposed(std::string_view text, const Replacements& replacements) {
  std::vector<Mark> marks;
  marks.reserve(text.size());
  for (const char* p = text.data(); p < text.data() + text.size();) decompose(next(p), replacements, marks);
  for (size_t begin = 0; begin < marks.size();) {
    if (marks[begin].combining_class == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < marks.size() && marks[end].combining_class != 0) ++end;
    std::stable_sort(marks.begin() + begin, marks.begin() + end,
                     [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
    begin = end;
  }
  return marks;
}

std::string join(const std::vector<Change>& changes) {
  std::string out;
  out.reserve(changes.size());
  for (const Change& change : changes) append(change.code, out);
  return out;
}

std::vector<Change> changes(const std::vector<Mark>& marks) {
  std::vector<Change> out;
  out.reserve(marks.size());
  for (const Mark& mark : marks) out.push_back({mark.code, mark.characters});
  return out;
}

/// The composite of two code points, or 0.
uint32_t composite(uint32_t first, uint32_t second) {
  static const std::unordered_map<uint64_t, uint32_t> compositions = make_compositions();
  if (first - kLeads < kLeadCount && second - kVowels < kVowelCount) {
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTailCount;
  }
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTailCount == 0 &&
      second - kTails - 1 < kTailCount - 1) {
    return first + (second - kTails);
  }
  const auto found = compositions.find(pair_key(first, second));
  return found == compositions.end() ? 0 : found->second;
}

bool all_below(std::string_view text, uint32_t limit) {
  for (const char* p = text.data(); p < text.data() + text.size();) {
    if (next(p) >= limit) return false;
  }
  return true;
}

const Replacements& decompositions() {
  static const Replacements table = make_replacements(unicode_tables::decompositions);
  return table;
}

const Replacements& lower_cases() {
  static const Replacements table = make_replacements(unicode_tables::lower);
  return table;
}

const Replacements& python_decompositions() {
  static const Replacements table =
      make_replacements(unicode_tables::decompositions, unicode_tables::python_decomposition_difference);
  return table;
}

const Replacements& python_lower_cases() {
  static const Replacements table =
      make_replacements(unicode_tables::lower, unicode_tables::python_lower_difference);
  return table;
}

void append_replaced(uint32_t code, const Replacements& replacements, std::vector<Change>& out) {
  const auto found = replacements.find(code);
  if (found == replacements.end()) return out.push_back({code, 0});
  for (const uint32_t& part : found->second) out.push_back({part, &part == found->second.data() ? 0 : 1});
}

/// The capital sigma ends its word: a cased letter before and none after it, except ignorable ones.
bool is_final_sigma(std::string_view text, const char* sigma) {
  const CharacterTable& table = characters();
  bool cased_before = false;
  for (const char* p = sigma; p > text.data();) {
    const uint16_t flags = table[previous(text.data(), p)];
    if (flags & python_ignorable) continue;
    cased_before = flags & python_cased;
    break;
  }
  if (!cased_before) return false;
  const char* p = sigma;
  next(p);
  while (p < text.data() + text.size()) {
    const uint16_t flags = table[next(p)];
    if (!(flags & python_ignorable)) return !(flags & python_cased);
  }
  return true;
}

std::vector<Change> lower_changes(std::string_view text) {
  std::vector<Change> out;
  for (const char* p = text.data(); p < text.data() + text.size();)
    append_replaced(next(p), lower_cases(), out);
  return out;
}

std::vector<Change> python_lower_changes(std::string_view text) {
  constexpr uint32_t kCapitalSigma = 0x3a3;
  constexpr uint32_t kFinalSigma = 0x3c2;
  std::vector<Change> out;
  out.reserve(text.size());
  for (const char* p = text.data(); p < text.data() + text.size();) {
    const char* const at = p;
    const uint32_t code = next(p);
    if (code == kCapitalSigma && is_final_sigma(text, at)) {
      out.push_back({kFinalSigma, 0});
    } else {
      append_replaced(code, python_lower_cases(), out);
    }
  }
  return out;
}

std::vector<Change> nfd_changes(std::string_view text) {
  return changes(decomposed(text, decompositions()));
}

std::vector<Change> python_nfd_changes(std::string_view text) {
  return changes(decomposed(text, python_decompositions()));
}

std::vector<Change> nfc_changes(std::string_view text) {
  std::vector<Mark> marks = decomposed(text, decompositions());
  size_t out = 0;
  size_t starter = SIZE_MAX;
  uint32_t last_class = 0;  // of the last mark after the starter
  for (const Mark mark : marks) {
    const bool adjacent = starter != SIZE_MAX && out == starter + 1;
    if (starter != SIZE_MAX && (adjacent || (last_class < mark.combining_class && last_class != 0))) {
      if (const uint32_t code = composite(marks[starter].code, mark.code)) {
        marks[starter].code = code;
        marks[starter].characters += mark.characters - 1;
        continue;
      }
    }
    if (mark.combining_class == 0) starter = out;
    last_class = mark.combining_class;
    marks[out++] = mark;
  }
  marks.resize(out);
  return changes(marks);
}

}  // namespace

void append_lower(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code));
    return;
  }
  const auto found = lower_cases().find(code);
  if (found == lower_cases().end()) return append(code, out);
  for (const uint32_t part : found->second) append(part, out);
}

std::string lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char* p = text.data(); p < text.data() + text.size();) append_lower(next(p), out);
  return out;
}

std::string python_lower(std::string_view text) {
  return join(python_lower_changes(text));
}

std::string nfd(std::string_view text) {
  return all_below(text, 0xc0) ? std::string(text) : join(nfd_changes(text));
}

std::string python_nfd(std::string_view text) {
  return all_below(text, 0xc0) ? std::string(text) : join(python_nfd_changes(text));
}

std::string nfc(std::string_view text) {
  return all_below(text, kFirstMark) ? std::string(text) : join(nfc_changes(text));
}

const Normalization kLower = {lower, lower_changes};
const Normalization kPythonLower = {python_lower, python_lower_changes};
const Normalization kNfd = {nfd, nfd_changes};
const Normalization kNfc = {nfc, nfc_changes};
const Normalization kPythonNfd = {python_nfd, python_nfd_changes};

}  // namespace teratron::unicode
