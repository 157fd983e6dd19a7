#include "teratron/pickle/pickle_calls.h"

#include <optional>

#include <fmt/ranges.h>

#include "teratron/pickle/globals.h"

namespace teratron {

namespace {

// torch's keys are numbers.
constexpr size_t most_key_bytes = 256;
constexpr size_t most_name_bytes = 1024;

}  // namespace

void PickleCalls::refuse_global(std::string_view name) const {
  throw checkpoint_error(
      {.what = fmt::format("the pickle names '{}', which is refused: it may run code", printable(name)),
       .where = stream_.where(),
       .fix = "Only tensors, numbers, texts, lists, dicts and argparse.Namespace are read. If you trust the "
              "file, load it with torch and save those alone with torch.save"});
}

void PickleCalls::push_global(const std::string& name) {
  if (pickle_global(name) == PickleGlobal::refused) refuse_global(name);
  stack_.push_global(name);
}

std::vector<int64_t> PickleCalls::sizes(const PickleValue& value) const {
  std::vector<int64_t> result;
  if (!value.is(Kind::tuple) && !value.is(Kind::list)) stream_.fail("the shape of a tensor is not a tuple");
  if (value.items().size() > 16) stream_.fail("a tensor has more than 16 dimensions");
  for (const PickleValue* item : value.items()) {
    if (!item->is(Kind::integer) || item->integer() < 0) stream_.fail("the shape of a tensor is not valid");
    result.push_back(item->integer());
  }
  return result;
}

// storage, offset, shape, strides and what training needs; every element must lie in the storage.
void PickleCalls::push_tensor(PickleStack::Items arguments) {
  if (arguments.size() < 4 || !arguments[0]->is(Kind::storage) || !arguments[1]->is(Kind::integer))
    stream_.fail("a tensor is not described as torch does");
  PickledTensor tensor{.storage = static_cast<size_t>(arguments[0]->integer()),
                       .offset = arguments[1]->integer(),
                       .shape = sizes(*arguments[2]),
                       .strides = sizes(*arguments[3])};
  if (tensor.shape.size() != tensor.strides.size())
    stream_.fail("a tensor has not as many strides as dimensions");
  const int64_t numel = stack_.pickle().storages[tensor.storage].numel;
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
    stream_.fail(fmt::format("a tensor of shape [{}] exceeds its storage of {} elements",
                             fmt::join(tensor.shape, ", "), numel));
  stack_.push_tensor(std::move(tensor));
}

// ("storage", class, key, device, elements, ...)
void PickleCalls::push_storage(const PickleValue& id) {
  const PickleStack::Items items = id.items();
  const bool valid = id.is(Kind::tuple) && items.size() >= 5 && items[0]->text() == "storage" &&
                     items[1]->is(Kind::global) && items[2]->is(Kind::text) && items[4]->is(Kind::integer) &&
                     items[4]->integer() >= 0;
  if (!valid) stream_.fail("a storage is not described as torch does");
  const std::string_view key = items[2]->text();
  if (key.size() > most_key_bytes) stream_.fail("the key of a storage is too long");
  const std::optional<Dtype> dtype = storage_dtype(items[1]->text());
  if (!dtype)
    stream_.fail(fmt::format("storages of class '{}' are not supported", printable(items[1]->text())));
  if (items.size() > 5 && !items[5]->is(Kind::none)) stream_.fail("views of storages are not supported");
  std::vector<PickledStorage>& storages = stack_.pickle().storages;
  const auto [found, added] = storage_of_key_.emplace(key, storages.size());
  if (added) {
    stack_.charge(2 * (sizeof(PickledStorage) + key.size()));
    storages.push_back({*dtype, std::string(key), items[4]->integer()});
  } else if (storages[found->second].dtype != *dtype ||
             storages[found->second].numel != items[4]->integer()) {
    stream_.fail(fmt::format("storage '{}' is described in two ways", printable(key)));
  }
  stack_.push_storage(found->second);
}

// OrderedDict(pairs)
void PickleCalls::push_dict(PickleStack::Items arguments) {
  std::vector<PickleValue*> items;
  if (!arguments.empty()) {
    const PickleValue& pairs = *arguments[0];
    stack_.charge(2 * sizeof(PickleValue*) * pairs.items().size());
    for (const PickleValue* pair : pairs.items()) {
      if (pairs.is(Kind::dict) || pair->items().size() != 2)
        stream_.fail("an OrderedDict is not made of pairs");
      items.insert(items.end(), pair->items().begin(), pair->items().end());
    }
  }
  stack_.push_items(Kind::dict, items);
}

void PickleCalls::push_call(PickleValue& callee, PickleValue& arguments) {
  if (!callee.is(Kind::global) || !arguments.is(Kind::tuple))
    stream_.fail("the pickle calls what is not a function");
  const PickleStack::Items items = arguments.items();
  const std::string_view name = callee.text();
  switch (const PickleGlobal global = pickle_global(name)) {
    case PickleGlobal::dict:
      return push_dict(items);
    case PickleGlobal::tuple:
    case PickleGlobal::set:
      return stack_.push_items(global == PickleGlobal::tuple ? Kind::tuple : Kind::list,
                               items.empty() ? PickleStack::Items() : items[0]->items());
    case PickleGlobal::bytes:
      if (items.empty() || !items[0]->is(Kind::text)) stream_.fail("_codecs.encode has no text");
      return stack_.push_text(Kind::bytes, items[0]->text());
    case PickleGlobal::tensor:
      return push_tensor(items);
    case PickleGlobal::parameter:
      if (items.empty() || !items[0]->is(Kind::tensor)) stream_.fail("a parameter holds no tensor");
      return stack_.push_again(items[0]);
    case PickleGlobal::member:
      if (items.size() != 2 || !items[0]->is(Kind::global) || !items[1]->is(Kind::text) ||
          pickle_global(items[0]->text()) != PickleGlobal::opaque)
        refuse_global(name);
      return stack_.push_object(callee, arguments);
    case PickleGlobal::opaque:
      return stack_.push_object(callee, arguments);
    default:
      stream_.fail(fmt::format("the pickle calls '{}'", printable(name)));
  }
}

// The state of an object: what __dict__ becomes.
void PickleCalls::build() {
  PickleValue* const state = stack_.pop();
  PickleValue& target = stack_.top();
  if (target.is(Kind::object)) {
    stack_.append(target, {&state, 1});
  } else if (target.is(Kind::dict)) {
    if (state->is(Kind::dict)) stack_.append(target, state->items());
  } else if (!target.is(Kind::tensor)) {
    stream_.fail("the pickle sets the state of what has none");
  }
}

bool PickleCalls::run(unsigned char operation) {
  switch (operation) {
    case 'c': {
      const std::string_view module = stream_.line();
      push_global(fmt::format("{}.{}", module, stream_.line()));
      return true;
    }
    case 0x93: {
      const PickleValue* const name = stack_.pop();
      const PickleValue* const module = stack_.pop();
      if (!name->is(Kind::text) || !module->is(Kind::text)) stream_.fail("the name of a class is not a text");
      if (name->text().size() + module->text().size() > most_name_bytes)
        stream_.fail("the name of a class is too long");
      push_global(fmt::format("{}.{}", module->text(), name->text()));
      return true;
    }
    case 0x92: {
      const PickleValue* const named = stack_.pop();
      if (!named->items().empty()) stream_.fail("the pickle makes an object with named arguments");
      [[fallthrough]];
    }
    case 'R':
    case 0x81: {
      PickleValue* const arguments = stack_.pop();
      push_call(*stack_.pop(), *arguments);
      return true;
    }
    case 'b':
      build();
      return true;
    case 'Q':
      push_storage(*stack_.pop());
      return true;
    default:
      return false;
  }
}

}  // namespace teratron
