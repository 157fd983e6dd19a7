#include "teratron/base/config/flag_reader.h"

#include <cctype>

namespace teratron {

namespace {

bool is_flag(std::string_view token) {
  if (token.starts_with("--")) return true;
  const bool number =
      token.size() > 1 && (std::isdigit(static_cast<unsigned char>(token[1])) || token[1] == '.');
  return token.size() > 1 && token[0] == '-' && !number;
}

// Number of values that a flag takes; -1: any.
int arity(const Schema::Target& target) {
  if (target.compat) return target.compat->arity;
  if (!target.field || is_list(target.field->type)) return -1;
  return target.field->type == FieldType::boolean ? 0 : 1;
}

// The words without a flag.
class Positions {
 public:
  explicit Positions(const Schema& schema) : schema_(schema) {
    for (const Field& field : schema.fields()) {
      if (field.traits.positional) fields_.push_back({field.name, is_list(field.type)});
    }
  }

  /// False if all fields have their values.
  bool take(const std::string& word) {
    if (next_ == fields_.size()) return false;
    Place& place = fields_[next_];
    place.words.push_back(word);
    if (!place.takes_all) ++next_;
    return true;
  }

  void add_to(ParseResult& result) const {
    for (const Place& place : fields_) {
      if (place.words.empty()) continue;
      const std::string where = printable(place.words.front());
      add_option(schema_, {.key = flag_of(place.name), .values = place.words, .where = where}, result);
    }
  }

 private:
  struct Place {
    std::string_view name;
    bool takes_all;
    std::vector<std::string> words = {};
  };
  const Schema& schema_;
  std::vector<Place> fields_;
  size_t next_ = 0;
};

void reject_word(const std::string& word, const std::string& before, ParseResult& result) {
  result.problems.push_back({.what = fmt::format("unexpected argument '{}'", printable(word)),
                             .where = before.empty() ? "command line" : "after " + printable(before),
                             .fix = "Write settings as --name value, switches as --name or --name=true"});
}

// Reads the flag at args[i] and its values; returns the position after them.
size_t read_flag(const Schema& schema, std::span<const std::string> args, size_t i, ParseResult& result) {
  const std::string& token = args[i++];
  const size_t equals = token.find('=');
  RawOption option{.key = token.substr(0, equals)};
  const Schema::Target* target = schema.find(option.key);
  const int count = target ? arity(*target) : -1;
  if (equals != std::string::npos) option.values.push_back(token.substr(equals + 1));
  while (equals == std::string::npos && i < args.size() && !is_flag(args[i]) &&
         (count < 0 || static_cast<int>(option.values.size()) < count)) {
    option.values.push_back(args[i++]);
  }
  option.where = printable(option.key);
  add_option(schema, option, result);
  return i;
}

}  // namespace

std::vector<std::string> read_arguments(const Schema& schema, std::span<const std::string> args,
                                        OtherArguments others, ParseResult& result) {
  std::vector<std::string> rest;
  Positions positions(schema);
  for (size_t i = 0; i < args.size();) {
    const std::string& token = args[i];
    if (others == OtherArguments::command && (token == "--" || !is_flag(token))) {
      rest.assign(args.begin() + static_cast<std::ptrdiff_t>(i), args.end());
      break;
    }
    const bool known = schema.find(token.substr(0, token.find('='))) != nullptr;
    if (is_help(token)) {
      result.help = true;
      ++i;
    } else if (is_flag(token) && (known || others != OtherArguments::collected)) {
      i = read_flag(schema, args, i, result);
    } else {
      if (others == OtherArguments::collected) {
        rest.push_back(token);
      } else if (!positions.take(token)) {
        reject_word(token, i > 0 ? args[i - 1] : "", result);
      }
      ++i;
    }
  }
  positions.add_to(result);
  return rest;
}

void read_flags(const Schema& schema, std::span<const std::string> args, ParseResult& result) {
  read_arguments(schema, args, OtherArguments::refused, result);
}

}  // namespace teratron
