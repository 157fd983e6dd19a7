// What a pickle names and calls: never run, only described.
#include <optional>

#include <fmt/ranges.h>

#include "teratron/pickle/globals.h"
#include "teratron/pickle/pickle_machine.h"

namespace teratron {

void PickleMachine::refuse_global(const std::string& name) const {
  throw checkpoint_error(
      {.what = fmt::format("the pickle names '{}', which is refused: it may run code", printable(name)),
       .where = where_,
       .fix = "Only tensors, numbers, texts, lists, dicts and argparse.Namespace are read. If you trust the "
              "file, load it with torch and save those alone with torch.save"});
}

void PickleMachine::push_global(std::string name) {
  if (pickle_global(name) == PickleGlobal::refused) refuse_global(name);
  push(Kind::global).text = std::move(name);
}

std::vector<int64_t> PickleMachine::sizes(const PickleValue& value) const {
  std::vector<int64_t> result;
  if (!value.is(Kind::tuple) && !value.is(Kind::list)) fail("the shape of a tensor is not a tuple");
  if (value.items.size() > 16) fail("a tensor has more than 16 dimensions");
  for (const PickleValue* item : value.items) {
    if (!item->is(Kind::integer) || item->integer < 0) fail("the shape of a tensor is not valid");
    result.push_back(item->integer);
  }
  return result;
}

// storage, offset, shape, strides and what training needs; every element must lie in the storage.
void PickleMachine::push_tensor(const std::vector<PickleValue*>& arguments) {
  if (arguments.size() < 4 || !arguments[0]->is(Kind::storage) || !arguments[1]->is(Kind::integer))
    fail("a tensor is not described as torch does");
  PickledTensor tensor{.storage = static_cast<size_t>(arguments[0]->integer),
                       .offset = arguments[1]->integer,
                       .shape = sizes(*arguments[2]),
                       .strides = sizes(*arguments[3])};
  if (tensor.shape.size() != tensor.strides.size()) fail("a tensor has not as many strides as dimensions");
  const int64_t numel = pickle_.storages[tensor.storage].numel;
  bool empty = false;
  int64_t last = tensor.offset;
  int64_t elements = 1;
  bool valid = last >= 0;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    int64_t extent = 0;
    empty = empty || tensor.shape[i] == 0;
    valid = valid && (empty || (!__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &extent) &&
                                !__builtin_add_overflow(last, extent, &last) &&
                                !__builtin_mul_overflow(elements, tensor.shape[i], &elements)));
  }
  // Strides of 0 would make a small file a huge tensor.
  if (!empty && (!valid || last >= numel || elements > numel))
    fail(fmt::format("a tensor of shape [{}] exceeds its storage of {} elements",
                     fmt::join(tensor.shape, ", "), numel));
  push(Kind::tensor).tensor = std::move(tensor);
}

// ("storage", class, key, device, elements, ...)
void PickleMachine::push_storage(const PickleValue& id) {
  const auto& items = id.items;
  const bool valid = id.is(Kind::tuple) && items.size() >= 5 && items[0]->text == "storage" &&
                     items[1]->is(Kind::global) && items[2]->is(Kind::text) && items[4]->is(Kind::integer) &&
                     items[4]->integer >= 0;
  if (!valid) fail("a storage is not described as torch does");
  const std::optional<Dtype> dtype = storage_dtype(items[1]->text);
  if (!dtype) fail(fmt::format("storages of class '{}' are not supported", printable(items[1]->text)));
  if (items.size() > 5 && !items[5]->is(Kind::none)) fail("views of storages are not supported");
  const auto [found, added] = storage_of_key_.emplace(items[2]->text, pickle_.storages.size());
  const PickledStorage storage{*dtype, items[2]->text, items[4]->integer};
  if (added) {
    pickle_.storages.push_back(storage);
  } else if (pickle_.storages[found->second].dtype != storage.dtype ||
             pickle_.storages[found->second].numel != storage.numel) {
    fail(fmt::format("storage '{}' is described in two ways", printable(storage.key)));
  }
  push(Kind::storage).integer = static_cast<int64_t>(found->second);
}

void PickleMachine::push_call(const PickleValue& callee, PickleValue& arguments) {
  if (!callee.is(Kind::global) || !arguments.is(Kind::tuple)) fail("the pickle calls what is not a function");
  const std::vector<PickleValue*>& items = arguments.items;
  switch (pickle_global(callee.text)) {
    case PickleGlobal::dict: {
      PickleValue& dict = push(Kind::dict);
      if (items.empty()) return;
      charge(items[0]->items.size() * 2);
      for (const PickleValue* pair : items[0]->items) {
        if (items[0]->is(Kind::dict) || pair->items.size() != 2) fail("an OrderedDict is not made of pairs");
        dict.items.insert(dict.items.end(), pair->items.begin(), pair->items.end());
      }
      return;
    }
    case PickleGlobal::tuple:
    case PickleGlobal::set: {
      const bool is_tuple = pickle_global(callee.text) == PickleGlobal::tuple;
      PickleValue& copy = push(is_tuple ? Kind::tuple : Kind::list);
      if (items.empty()) return;
      charge(items[0]->items.size());
      copy.items = items[0]->items;
      return;
    }
    case PickleGlobal::bytes:
      if (items.empty() || !items[0]->is(Kind::text)) fail("_codecs.encode has no text");
      charge(items[0]->text.size() / sizeof(PickleValue));
      return push_text(Kind::bytes, items[0]->text);
    case PickleGlobal::tensor:
      return push_tensor(items);
    case PickleGlobal::parameter:
      if (items.empty() || !items[0]->is(Kind::tensor)) fail("a parameter holds no tensor");
      stack_.push_back(items[0]);
      return;
    case PickleGlobal::member:
      if (items.size() != 2 || !items[0]->is(Kind::global) || !items[1]->is(Kind::text) ||
          pickle_global(items[0]->text) != PickleGlobal::opaque)
        refuse_global(callee.text);
      [[fallthrough]];
    case PickleGlobal::opaque: {
      PickleValue& object = push(Kind::object);
      object.text = callee.text;
      object.items = {&arguments};
      return;
    }
    default:
      fail(fmt::format("the pickle calls '{}'", printable(callee.text)));
  }
}

// The state of an object: what __dict__ becomes.
void PickleMachine::build() {
  PickleValue* const state = pop();
  PickleValue& target = top();
  if (target.is(Kind::object)) {
    target.items.push_back(state);
  } else if (target.is(Kind::dict)) {
    if (!state->is(Kind::dict)) return;
    charge(state->items.size());
    const std::vector<PickleValue*> items = state->items;
    target.items.insert(target.items.end(), items.begin(), items.end());
  } else if (!target.is(Kind::tensor)) {
    fail("the pickle sets the state of what has none");
  }
}

bool PickleMachine::call(unsigned char operation) {
  switch (operation) {
    case 'c': {
      const std::string module(line());
      push_global(module + "." + std::string(line()));
      return true;
    }
    case 0x93: {
      const PickleValue* const name = pop();
      const PickleValue* const module = pop();
      if (!name->is(Kind::text) || !module->is(Kind::text)) fail("the name of a class is not a text");
      push_global(module->text + "." + name->text);
      return true;
    }
    case 0x92: {
      const PickleValue* const named = pop();
      if (!named->items.empty()) fail("the pickle makes an object with named arguments");
      [[fallthrough]];
    }
    case 'R':
    case 0x81: {
      PickleValue* const arguments = pop();
      push_call(*pop(), *arguments);
      return true;
    }
    case 'b':
      build();
      return true;
    case 'Q':
      push_storage(*pop());
      return true;
    default:
      return false;
  }
}

}  // namespace teratron
