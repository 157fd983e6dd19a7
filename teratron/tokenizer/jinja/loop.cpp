#include "teratron/tokenizer/jinja/loop.h"

namespace teratron::jinja {

namespace {

Value cycle(Workspace& workspace, const Function& function, const Arguments& arguments) {
  if (arguments.positional.empty()) throw workspace.error("loop.cycle() needs values");
  return arguments.positional[static_cast<const Loop*>(function.data)->index % arguments.positional.size()];
}

Value changed(Workspace& workspace, const Function& function, const Arguments& arguments) {
  const Loop& loop = *static_cast<const Loop*>(function.data);
  const Value now = workspace.list(arguments.positional, ListKind::tuple);
  const bool differs = loop.changed->is_undefined() || !equal(workspace, *loop.changed, now);
  *loop.changed = now;
  return differs;
}

Value neighbour(const Loop& loop, bool exists, size_t index) {
  return exists ? loop.items[index] : Value(Undefined{"there is no such item in the loop"});
}

}  // namespace

std::optional<Value> loop_attribute(Workspace& workspace, const Loop& loop, std::string_view name) {
  const size_t size = loop.items.size(), index = loop.index;
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return loop.depth;
  if (name == "depth0") return loop.depth - 1;
  if (name == "previtem") return neighbour(loop, index > 0, index - 1);
  if (name == "nextitem") return neighbour(loop, index + 1 < size, index + 1);
  if (name != "cycle" && name != "changed") return std::nullopt;
  return static_cast<const Function*>(workspace.make(
      Function{.name = workspace.keep(name), .call = name == "cycle" ? cycle : changed, .data = &loop}));
}

}  // namespace teratron::jinja
