#include "teratron/megatron/structure.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "teratron/base/error.h"

namespace teratron {

using nlohmann::json;

namespace {

using Kind = PickleValue::Kind;

constexpr int most_depth = 40;

// Values may be shared, so that a walk could see far more of them than there are.
class StructurePrinter {
 public:
  explicit StructurePrinter(const PrintLine& print_line) : print_line_(print_line) {}

  void print(const std::string& name, const PickleValue& value, int depth) {
    if (--left_ < 0 || depth > most_depth) return;
    const int spaces = 2 * depth;
    const std::string label = std::string(static_cast<size_t>(std::max(0, spaces - 2)), '.') + "# " +
                              fmt::format("{:<{}}", printable(name), std::max(1, 50 - spaces));
    if (value.is(Kind::dict)) {
      if (depth > 0) print_line_(label);
      for (size_t i = 0; i + 1 < value.items().size(); i += 2)
        print(key_of(*value.items()[i]), *value.items()[i + 1], depth + 1);
    } else if (value.is(Kind::tensor)) {
      print_line_(fmt::format("{} : torch.Size([{}])", label, fmt::join(value.tensor().shape, ", ")));
    } else {
      print_line_(fmt::format("{} : {}", label, printable(text_of(value), 200)));
    }
  }

 private:
  static std::string key_of(const PickleValue& key) {
    if (key.is(Kind::text)) return std::string(key.text());
    return key.is(Kind::integer) ? std::to_string(key.integer()) : "...";
  }
  static std::string text_of(const PickleValue& value) {
    if (value.is(Kind::none)) return "None";
    if (value.is(Kind::boolean)) return value.integer() != 0 ? "True" : "False";
    if (value.is(Kind::integer)) return std::to_string(value.integer());
    if (value.is(Kind::real)) return fmt::format("{}", value.real());
    if (value.is(Kind::text) || value.is(Kind::object) || value.is(Kind::global))
      return std::string(value.text());
    return fmt::format("{} items", value.items().size());
  }

  const PrintLine& print_line_;
  int left_ = 1'000'000;
};

json to_plain(const PickleValue& value, int& left) {
  if (--left < 0) return nullptr;
  if (value.is(Kind::boolean)) return value.integer() != 0;
  if (value.is(Kind::integer)) return value.integer();
  if (value.is(Kind::real)) return value.real();
  if (value.is(Kind::text)) return printable(value.text(), 4096);
  if (value.is(Kind::global)) return printable(value.text());
  json result;
  if (value.is(Kind::list) || value.is(Kind::tuple)) {
    result = json::array();
    for (const PickleValue* item : value.items()) result.push_back(to_plain(*item, left));
  }
  if (value.is(Kind::dict)) {
    result = json::object();
    for (size_t i = 0; i + 1 < value.items().size(); i += 2) {
      if (value.items()[i]->is(Kind::text))
        result[printable(value.items()[i]->text())] = to_plain(*value.items()[i + 1], left);
    }
  }
  return result;
}

}  // namespace

void print_structure(const PickleValue& root, const PrintLine& print_line) {
  StructurePrinter(print_line).print("", root, 0);
}

void print_tensor(const std::string& name, const std::vector<int64_t>& shape, const PrintLine& print_line) {
  print_line(fmt::format("# {:<48} : torch.Size([{}])", printable(name), fmt::join(shape, ", ")));
}

json plain_json(const PickleValue& value) {
  int left = 100'000;
  return to_plain(value, left);
}

}  // namespace teratron
