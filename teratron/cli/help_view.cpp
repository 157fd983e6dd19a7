#include "teratron/cli/help_view.h"

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

std::vector<Section> sections_of(const std::string& full) {
  std::vector<Section> sections;
  for (const std::string& line : split(full, '\n')) {
    if (line.starts_with("  -")) {
      if (sections.empty()) sections.push_back({"Flags", {}});
      sections.back().rows.push_back({line + "\n", flags_of(line)});
    } else if (line.starts_with("  ") && !sections.empty() && !sections.back().rows.empty()) {
      sections.back().rows.back().text += line + "\n";
    } else if (!line.empty() && !line.starts_with(' ') && !line.starts_with("usage:")) {
      sections.push_back({line, {}});
    }
  }
  std::erase_if(sections, [](const Section& section) { return section.rows.empty(); });
  return sections;
}

std::string text_of(const Section& section) {
  std::string text = section.title + "\n";
  for (const Row& row : section.rows) text += row.text;
  return text;
}

// What follows --help.
std::optional<std::string> subject_of(std::span<const std::string> args) {
  const auto help = std::ranges::find_if(args, [](const std::string& arg) { return is_help(arg); });
  if (help == args.end() || help + 1 == args.end()) return std::nullopt;
  return *(help + 1);
}

std::string short_page(const HelpPage& page, const std::vector<Section>& sections) {
  std::string text = fmt::format("usage: {} [FLAGS]\n\n", page.command);
  size_t count = 0;
  std::vector<std::string> titles;
  for (const Section& section : sections) {
    titles.push_back(section.title);
    count += section.rows.size();
    for (const Row& row : section.rows) {
      const bool is_main = std::ranges::any_of(
          row.flags, [&](const std::string& flag) { return std::ranges::count(page.main_flags, flag) > 0; });
      if (is_main) text += row.text;
    }
  }
  text += fmt::format("\n  {}\n\n", page.example);
  std::string line =
      fmt::format("All {} flags: --help-all. Some: --help --FLAG, --help WORD, --help SECTION:", count);
  for (const std::string& title : titles) {
    if (line.size() + title.size() + 2 > 100) {
      text += line + "\n";
      line = " ";
    }
    line += " " + title + (title == titles.back() ? "" : ",");
  }
  return text + line;
}

// Rows that have the word in a flag or in the text.
std::string search(const std::vector<Section>& sections, const std::string& word) {
  std::string text;
  for (const Section& section : sections) {
    Section found{section.title, {}};
    for (const Row& row : section.rows) {
      if (to_lower(row.text).find(to_lower(word)) != std::string::npos) found.rows.push_back(row);
    }
    if (!found.rows.empty()) text += (text.empty() ? "" : "\n") + text_of(found);
  }
  return text;
}

UserError nothing_found(const std::vector<Section>& sections, const std::string& subject) {
  std::vector<std::string> names;
  for (const Section& section : sections) {
    names.push_back(section.title);
    for (const Row& row : section.rows) {
      for (const std::string& flag : row.flags) {
        std::string name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
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
  const std::vector<Section> sections = sections_of(page.full);
  const std::optional<std::string> subject = subject_of(args);
  if (!subject) return short_page(page, sections);
  for (const Section& section : sections) {
    if (to_lower(section.title) == to_lower(*subject)) return text_of(section);
    for (const Row& row : section.rows) {
      if (std::ranges::count(row.flags, *subject) > 0) return section.title + "\n" + row.text;
    }
  }
  std::string text = search(sections, *subject);
  if (text.empty()) throw nothing_found(sections, *subject);
  return text;
}

}  // namespace teratron
