#include "teratron/base/config/yaml.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include <yaml-cpp/anchor.h>
#include <yaml-cpp/emitterstyle.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "teratron/base/config/config.h"
#include "teratron/base/file.h"

namespace teratron {

namespace {

constexpr size_t max_bytes = size_t{1} << 20;
constexpr size_t max_entries = 10'000;
constexpr int max_sections = 4;
constexpr size_t max_bases = 16;

std::string position(const std::string& name, const YAML::Mark& mark) {
  return fmt::format("{}:{}:{}", printable(name), mark.line + 1, mark.column + 1);
}

// Where the first documents of a text begin, two at most: YAML::LoadAll() does not end on some texts with
// zero bytes, from which yaml-cpp reads one empty document after the other.
class DocumentStarts : public YAML::EventHandler {
 public:
  explicit DocumentStarts(const std::string& text) {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (documents_ < 2 && parser.HandleNextDocument(*this)) {
    }
  }
  int count() const { return documents_; }
  /// Position of the root of the last document.
  const YAML::Mark& last() const { return last_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    documents_ += 1;
    at_root_ = true;
    last_ = mark;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { node(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { node(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string&) override {
    node(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    node(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    node(mark);
  }
  void OnMapEnd() override {}

 private:
  void node(const YAML::Mark& mark) {
    if (std::exchange(at_root_, false)) last_ = mark;
  }
  int documents_ = 0;
  bool at_root_ = false;
  YAML::Mark last_;
};

class Reader {
 public:
  explicit Reader(std::vector<Problem>& problems) : problems_(problems) {}

  YamlEntries take() { return {std::move(entries_), complete_}; }

  void read_file(const std::filesystem::path& path, const std::string& where) {
    if (open_.size() >= max_bases) {
      return give_up("base files are nested too deep", where, fmt::format("At most {} levels", max_bases));
    }
    std::error_code ignored;
    const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, ignored);
    if (std::find(open_.begin(), open_.end(), canonical) != open_.end()) {
      return give_up(fmt::format("{} includes itself", printable(path.string())), where, "Remove this base");
    }
    std::string text;
    try {
      text = read_text(path, {.kind = ExitCode::config, .max_bytes = max_bytes});
    } catch (const UserError& error) {
      for (const Problem& problem : error.problems()) {
        give_up(problem.where.empty() ? problem.what : problem.where + ": " + problem.what, where,
                problem.fix);
      }
      return;
    }
    open_.push_back(canonical);
    read({.text = std::move(text), .name = path.string(), .directory = path.parent_path()});
    open_.pop_back();
  }

  void read(const YamlSource& yaml) {
    YAML::Node document;
    try {
      const DocumentStarts starts(yaml.text);
      if (starts.count() > 1)
        return give_up("more than one document", position(yaml.name, starts.last()), "Keep one");
      document = YAML::Load(yaml.text);
    } catch (const YAML::Exception& error) {
      return give_up(fmt::format("not valid YAML: {}", printable(error.msg)), position(yaml.name, error.mark),
                     "");
    }
    if (document.IsNull()) return;
    if (!document.IsMap()) {
      return give_up("not a mapping of 'key: value' lines", position(yaml.name, document.Mark()), "");
    }
    read_bases(yaml, document);
    read_section(yaml.name, {}, 0, document);
  }

 private:
  // The file is not read further.
  void give_up(std::string what, std::string where, std::string fix) {
    complete_ = false;
    reject(std::move(what), std::move(where), std::move(fix));
  }

  void reject(std::string what, std::string where, std::string fix) {
    problems_.push_back({.what = std::move(what), .where = std::move(where), .fix = std::move(fix)});
  }

  void read_bases(const YamlSource& yaml, const YAML::Node& top) {
    for (const auto& pair : top) {
      if (!pair.first.IsScalar() || pair.first.Scalar() != "base") continue;
      const YAML::Node& value = pair.second;
      const std::string where = position(yaml.name, value.Mark());
      if (value.IsScalar()) {
        read_file(yaml.directory / value.Scalar(), where);
      } else if (value.IsSequence()) {
        for (const YAML::Node& item : value) {
          if (item.IsScalar()) read_file(yaml.directory / item.Scalar(), position(yaml.name, item.Mark()));
        }
      } else if (!value.IsNull()) {
        reject("base must be a file name or a list of them", where, "");
      }
    }
  }

  void read_section(const std::string& name, const std::string& section, int depth, const YAML::Node& map) {
    if (depth > max_sections) return reject("sections are nested too deep", position(name, map.Mark()), "");
    std::map<std::string, std::string> seen;
    for (const auto& pair : map) {
      const std::string where = position(name, pair.first.Mark());
      if (!pair.first.IsScalar()) {
        reject("a key must be a scalar", where, "");
        continue;
      }
      const std::string key = pair.first.Scalar();
      const auto [first, fresh] = seen.emplace(canonical_name(key), where);
      if (!fresh) {
        reject(fmt::format("key '{}' appears twice; first at {}", printable(key), first->second), where,
               "Remove one of them");
      } else if (depth > 0 || key != "base") {
        if (entries_.size() >= max_entries) return reject("too many keys", where, "");
        add(name, {.section = section, .key = key, .where = where}, depth, pair.second);
      }
    }
  }

  void add(const std::string& name, YamlEntry entry, int depth, const YAML::Node& value) {
    entry.value_where = value.IsNull() ? entry.where : position(name, value.Mark());
    if (value.IsMap()) {
      const std::string section = entry.section.empty() ? entry.key : entry.section + "." + entry.key;
      return read_section(name, section, depth + 1, value);
    }
    if (value.IsSequence()) {
      for (const YAML::Node& item : value) {
        if (!item.IsScalar()) {
          return reject(fmt::format("'{}' must be a list of scalars", printable(entry.key)),
                        position(name, item.Mark()), "");
        }
        entry.values.push_back(item.Scalar());
      }
    } else if (value.IsNull()) {
      entry.null = true;
    } else {
      entry.values.push_back(value.Scalar());
    }
    entries_.push_back(std::move(entry));
  }

  std::vector<Problem>& problems_;
  std::vector<YamlEntry> entries_;
  bool complete_ = true;
  std::vector<std::filesystem::path> open_;  // files being read, outermost first
};

}  // namespace

YamlEntries read_yaml(const std::filesystem::path& path, const std::string& where,
                      std::vector<Problem>& problems) {
  Reader reader(problems);
  reader.read_file(path, where);
  return reader.take();
}

YamlEntries parse_yaml(const YamlSource& yaml, std::vector<Problem>& problems) {
  Reader reader(problems);
  reader.read(yaml);
  return reader.take();
}

}  // namespace teratron
