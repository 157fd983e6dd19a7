#include "teratron/base/config/help_view.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "teratron/base/config/flag_reader.h"
#include "teratron/base/config/spelling.h"
#include "teratron/base/error.h"
#include "teratron/base/strings.h"

namespace teratron {

namespace {

struct Row {
  std::string text;                // with its further lines
  std::vector<std::string> flags;  // and aliases
};

struct Section {
  std::string title;
  std::vector<Row> rows;
};

// The flags at the beginning of a row: "  --lr X  ..." or "  --tensor-model-parallel-size, --tp N".
std::vector<std::string> flags_of(const std::string& line) {
  std::vector<std::string> flags;
  const std::string left = line.substr(2, line.find("  ", 2) - 2);
  for (std::string& word : split(left, ' ')) {
    if (word.ends_with(',')) word.pop_back();
    if (word.starts_with('-')) flags.push_back(std::move(word));
  }
  return flags;
}

// A text of help_text() in its parts.
struct HelpParts {
  std::string head;  // usage and summary
  std::vector<Section> sections;
  std::string remarks;
};

bool is_row(const std::string& line) {
  return line.starts_with("  -");
}

// Titles stand right above their rows; before the first and after the last row are other texts.
HelpParts parts_of(const std::string& full) {
  HelpParts parts;
  const std::vector<std::string> lines = split(full, '\n');
  const auto first = std::ranges::find_if(lines, is_row);
  std::string text;  // since the last row
  for (auto line = lines.begin(); line != lines.end(); ++line) {
    const bool titles = line + 1 != lines.end() && is_row(*(line + 1)) && !line->empty() &&
                        line->front() != ' ' && !line->starts_with("usage:") && !line->ends_with(".");
    if (titles) {
      parts.sections.push_back({*line, {}});
    } else if (is_row(*line)) {
      if (parts.sections.empty()) parts.sections.push_back({"", {}});
      parts.sections.back().rows.push_back({*line + "\n", flags_of(*line)});
      text.clear();
    } else if (line < first) {
      parts.head += *line + "\n";
    } else if (line->starts_with("      ") && text.empty()) {
      parts.sections.back().rows.back().text += *line + "\n";
    } else if (!line->empty() || !text.empty()) {
      text += *line + "\n";
    }
  }
  parts.remarks = std::move(text);
  for (std::string* const each : {&parts.head, &parts.remarks}) each->erase(each->find_last_not_of('\n') + 1);
  return parts;
}

std::string text_of(const Section& section) {
  std::string text = section.title.empty() ? "" : section.title + "\n";
  for (const Row& row : section.rows) text += row.text;
  return text;
}

// What follows --help.
std::optional<std::string> subject_of(std::span<const std::string> args) {
  const auto help = std::ranges::find_if(args, [](const std::string& arg) { return is_help(arg); });
  if (help == args.end() || help + 1 == args.end()) return std::nullopt;
  return *(help + 1);
}

// Where the flags are that the short page leaves out.
std::string directions(const std::vector<Section>& sections) {
  size_t count = 0;
  for (const Section& section : sections) count += section.rows.size();
  std::string text;
  std::string line = fmt::format("All {} flags: --help-all. Some: --help --FLAG, --help WORD", count);
  const std::string& last = sections.back().title;
  if (!last.empty()) line += ", --help SECTION:";
  for (const Section& section : sections) {
    if (section.title.empty()) continue;
    if (line.size() + section.title.size() + 2 > 100) {
      text += line + "\n";
      line = " ";
    }
    line += " " + section.title + (section.title == last ? "" : ",");
  }
  return text + line;
}

std::string short_page(const HelpPage& page, const HelpParts& parts) {
  std::string text = parts.head + "\n\n";
  bool left_out = false;
  for (const Section& section : parts.sections) {
    for (const Row& row : section.rows) {
      const bool is_main = page.main_flags.empty() || std::ranges::any_of(row.flags, [&](const auto& flag) {
                             return std::ranges::count(page.main_flags, flag) > 0;
                           });
      left_out = left_out || !is_main;
      if (is_main) text += row.text;
    }
  }
  if (!parts.remarks.empty()) text += "\n" + parts.remarks + "\n";
  if (!page.example.empty()) {
    text += "\nexample:\n";
    for (const std::string& line : split(page.example, '\n')) text += "  " + line + "\n";
  }
  if (left_out) text += "\n" + directions(parts.sections);
  text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

bool is_word_of(const std::string& word, const std::string& flag) {
  const std::vector<std::string> words = split(flag, '-');
  return std::ranges::find(words, word) != words.end();
}

// Rows that have the word as one of a flag, such as lr in --min-lr, or else anywhere.
std::string search(const std::vector<Section>& sections, const std::string& typed) {
  const std::string word = to_lower(typed);
  const auto has_word = [&](const Row& row) {
    return std::ranges::any_of(row.flags, [&](const auto& flag) { return is_word_of(word, flag); });
  };
  const bool is_name = std::ranges::any_of(
      sections, [&](const Section& section) { return std::ranges::any_of(section.rows, has_word); });
  std::string text;
  for (const Section& section : sections) {
    Section found{section.title, {}};
    for (const Row& row : section.rows) {
      if (is_name ? has_word(row) : to_lower(row.text).find(word) != std::string::npos)
        found.rows.push_back(row);
    }
    if (!found.rows.empty()) text += (text.empty() ? "" : "\n") + text_of(found);
  }
  return text;
}

UserError nothing_found(const std::vector<Section>& sections, const std::string& subject) {
  std::vector<std::string> names;
  for (const Section& section : sections) {
    if (!section.title.empty()) names.push_back(section.title);
    for (const Row& row : section.rows) {
      for (const std::string& flag : row.flags) {
        std::string name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
        for (std::string& word : split(name, '-')) {
          if (word.size() > 3) names.push_back(std::move(word));
        }
        std::ranges::replace(name, '-', '_');
        names.push_back(std::move(name));
      }
    }
  }
  std::string typed = subject.substr(std::min(subject.find_first_not_of('-'), subject.size()));
  std::ranges::replace(typed, '-', '_');
  std::string near = nearest_spelling(typed, names);
  std::ranges::replace(near, '_', '-');
  return config_error(
      {.what = fmt::format("no flag and no section has '{}'", printable(subject, 60)),
       .where = "--help",
       .fix = near.empty() ? "--help-all lists all flags" : fmt::format("Did you mean {}?", near)});
}

}  // namespace

bool asks_for_help(std::span<const std::string> args) {
  return std::ranges::any_of(args,
                             [](const std::string& arg) { return is_help(arg) || arg == "--help-all"; });
}

std::string help_view(const HelpPage& page, std::span<const std::string> args) {
  if (std::ranges::find(args, "--help-all") != args.end()) return page.full;
  const HelpParts parts = parts_of(page.full);
  const std::vector<Section>& sections = parts.sections;
  const std::optional<std::string> subject = subject_of(args);
  if (!subject) return short_page(page, parts);
  for (const Section& section : sections) {
    if (!section.title.empty() && to_lower(section.title) == to_lower(*subject)) return text_of(section);
    for (const Row& row : section.rows) {
      if (std::ranges::count(row.flags, *subject) > 0) return text_of({section.title, {row}});
    }
  }
  std::string text = search(sections, *subject);
  if (text.empty()) throw nothing_found(sections, *subject);
  return text;
}

}  // namespace teratron
