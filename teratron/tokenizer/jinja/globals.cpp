#include "teratron/tokenizer/jinja/globals.h"

#include <ctime>
#include <vector>

namespace teratron::jinja {

namespace {

constexpr int64_t longest_range = 100000;  // as in Jinja's sandbox

Value range(Workspace& workspace, const Function& /*function*/, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"start", "stop", "step"});
  if (!given[0]) throw workspace.error("range() needs a number");
  int64_t start = integer_argument(workspace, given[0], 0), stop = integer_argument(workspace, given[1], 0);
  const int64_t step = integer_argument(workspace, given[2], 1);
  if (!given[1]) {
    stop = start;
    start = 0;
  }
  if (step == 0) throw workspace.error("the step of range() is 0");
  std::vector<Value> values;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (std::ssize(values) == longest_range)
      throw workspace.error(fmt::format("range() has more than {} numbers", longest_range));
    values.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return workspace.list(values);
}

Value make_dict(Workspace& workspace, const Function& /*function*/, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> members;
  if (!arguments.positional.empty()) {
    const auto* const dict = arguments.positional[0].get_if<const Dict*>();
    if (dict == nullptr || arguments.positional.size() > 1)
      throw workspace.error("dict() takes a dict and named values");
    members.assign((*dict)->members.begin(), (*dict)->members.end());
  }
  for (const auto& [name, value] : arguments.named) members.emplace_back(name, value);
  return workspace.dict(members);
}

Value make_namespace(Workspace& workspace, const Function& function, const Arguments& arguments) {
  const Value members = make_dict(workspace, function, arguments);
  Namespace* const made = workspace.make(Namespace{});
  for (const auto& [name, value] : members.as<const Dict*>()->members)
    made->set(text_argument(workspace, name), value, workspace);
  return made;
}

Value raise_exception(Workspace& workspace, const Function& /*function*/, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"message"});
  throw workspace.error(std::string(given[0] ? to_text(workspace, *given[0]) : "raise_exception()"),
                        "The chat template refuses the conversation: change its messages");
}

Value strftime_now(Workspace& workspace, const Function& /*function*/, const Arguments& arguments) {
  const std::string format(text_argument(workspace, arguments.bind(workspace, {"format"})[0]));
  if (format.size() > 200) throw workspace.error("the format of strftime_now() is too long");
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  char buffer[4096];
  return workspace.keep({buffer, std::strftime(buffer, sizeof buffer, format.c_str(), &local)});
}

constexpr Function functions[] = {
    {.name = "range", .call = range},
    {.name = "dict", .call = make_dict},
    {.name = "namespace", .call = make_namespace},
    {.name = "raise_exception", .call = raise_exception},
    {.name = "strftime_now", .call = strftime_now},
};

}  // namespace

std::optional<Value> find_global(std::string_view name) {
  for (const Function& each : functions) {
    if (each.name == name) return &each;
  }
  return std::nullopt;
}

}  // namespace teratron::jinja
