#include "teratron/pickle/pickle_stack.h"

#include <algorithm>
#include <bit>

namespace teratron {

namespace {

constexpr size_t pointer_bytes = sizeof(PickleValue*);
constexpr size_t entry_bytes = 2 * pointer_bytes;  // of a vector, with the room that it grows into
constexpr size_t node_bytes = 64;                  // of a hash map
constexpr size_t tensor_bytes = sizeof(PickledTensor) + 64;
constexpr size_t block_pointers = 4096;

// Room for items, which grows by doubling.
size_t capacity_for(size_t count) {
  return count == 0 ? 0 : std::max<size_t>(4, std::bit_ceil(count));
}

}  // namespace

PickleValue& PickleStack::make(Kind kind) {
  charge(sizeof(PickleValue));
  PickleValue& value = pickle_.values.emplace_back();
  value.kind_ = kind;
  push_again(&value);
  return value;
}

void PickleStack::push_again(PickleValue* value) {
  if (height_ == stack_.size()) {
    charge(entry_bytes);
    stack_.push_back(value);
  }
  stack_[height_++] = value;
}

// Values that nothing changes are made once.
void PickleStack::push_shared(PickleValue*& shared, Kind kind, int64_t integer) {
  if (shared != nullptr) return push_again(shared);
  PickleValue& value = make(kind);
  value.integer_ = integer;
  shared = &value;
}

void PickleStack::push_integer(int64_t integer) {
  if (integer >= 0 && integer < std::ssize(integers_))
    return push_shared(integers_[static_cast<size_t>(integer)], Kind::integer, integer);
  make(Kind::integer).integer_ = integer;
}

void PickleStack::push_text(Kind kind, std::string_view text) {
  PickleValue& value = make(kind);
  value.text_ = text.data();
  value.count_ = static_cast<uint32_t>(text.size());
}

void PickleStack::push_items(Kind kind, Items items) {
  // A list or dict grows where it is, a tuple stays as it is.
  const size_t capacity = kind == Kind::tuple ? items.size() : capacity_for(items.size());
  PickleValue** const array = allocate(capacity);
  std::ranges::copy(items, array);
  PickleValue& value = make(kind);
  value.items_ = array;
  value.count_ = static_cast<uint32_t>(items.size());
}

void PickleStack::push_global(const std::string& name) {
  if (const auto found = globals_.find(name); found != globals_.end()) return push_again(found->second);
  charge(node_bytes + sizeof(std::string) + name.size());
  const std::string& kept = pickle_.names.emplace_back(name);
  push_text(Kind::global, kept);
  globals_[kept] = &top();
}

void PickleStack::push_object(PickleValue& named, PickleValue& arguments) {
  PickleValue* const items[] = {&named, &arguments};
  push_items(Kind::object, items);
}

void PickleStack::push_tensor(PickledTensor tensor) {
  charge(tensor_bytes + entry_bytes * tensor.shape.size());
  const PickledTensor& kept = pickle_.tensors.emplace_back(std::move(tensor));
  make(Kind::tensor).tensor_ = &kept;
}

PickleValue** PickleStack::allocate(size_t count) {
  charge(count * pointer_bytes);
  if (count > block_pointers / 2)
    return pickle_.arrays.emplace_back(std::make_unique_for_overwrite<PickleValue*[]>(count)).get();
  if (count > free_count_) {
    pickle_.arrays.push_back(std::make_unique_for_overwrite<PickleValue*[]>(block_pointers));
    free_ = pickle_.arrays.back().get();
    free_count_ = block_pointers;
  }
  PickleValue** const array = free_;
  free_ += count;
  free_count_ -= count;
  return array;
}

void PickleStack::append(PickleValue& target, Items items) {
  const size_t before = target.count_, after = before + items.size();
  if (capacity_for(after) > capacity_for(before)) {
    PickleValue** const array = allocate(capacity_for(after));
    std::copy_n(target.items_, before, array);
    target.items_ = array;
  }
  std::ranges::copy(items, target.items_ + before);
  target.count_ = static_cast<uint32_t>(after);
}

void PickleStack::mark() {
  if (marks_.size() == most_marks_) {
    charge(entry_bytes);
    ++most_marks_;
  }
  marks_.push_back(height_);
}

PickleStack::Items PickleStack::pop_to_mark() {
  if (marks_.empty()) stream_.fail("the pickle lacks a mark");
  const size_t begin = marks_.back();
  marks_.pop_back();
  return {stack_.data() + begin, std::exchange(height_, begin) - begin};
}

void PickleStack::get(uint64_t index) {
  if (index < memo_.size()) return push_again(memo_[index]);
  const auto found = far_memo_.find(index);
  if (found == far_memo_.end()) stream_.fail(fmt::format("the pickle's memo has no entry {}", index));
  push_again(found->second);
}

void PickleStack::put(uint64_t index) {
  PickleValue* const value = &top();
  if (index < memo_.size()) {
    memo_[index] = value;
  } else if (index == memo_.size() && !far_memo_.contains(index)) {
    charge(entry_bytes);
    memo_.push_back(value);
  } else {
    if (!far_memo_.contains(index)) charge(node_bytes);
    far_memo_[index] = value;
  }
}

}  // namespace teratron
