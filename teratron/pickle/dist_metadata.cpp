#include "teratron/pickle/dist_metadata.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/pickle/unpickler.h"

namespace teratron {

namespace {

using Kind = PickleValue::Kind;

constexpr size_t most_dims = 8, most_file_name_bytes = 64;

constexpr std::string_view advice =
    "Use an undamaged checkpoint that Megatron-LM saved in format torch_dist; one whose .metadata is too "
    "large "
    "can be saved in format 'torch' (--ckpt-format torch)";

[[noreturn]] void refuse_metadata(const std::string& what, const std::string& where) {
  throw checkpoint_error({.what = what, .where = where, .fix = std::string(advice)});
}

// The state of an object: its attributes by name, or a tuple of them.
const PickleValue* state_of(const PickleValue& object) {
  const auto items = object.items();
  return object.is(Kind::object) && items.size() >= 2 ? items.back() : nullptr;
}

const PickleValue* attribute(const PickleValue& object, std::string_view name) {
  const PickleValue* const state = state_of(object);
  return state == nullptr ? nullptr : state->find(name);
}

bool is_object(const PickleValue& value, std::string_view name) {
  return value.is(Kind::object) && value.text().ends_with(name);
}

std::optional<Dtype> dtype_named(std::string_view name) {
  constexpr std::pair<std::string_view, Dtype> names[] = {
      {"torch.float32", Dtype::f32}, {"torch.float16", Dtype::f16}, {"torch.bfloat16", Dtype::bf16},
      {"torch.float64", Dtype::f64}, {"torch.int64", Dtype::i64},   {"torch.int32", Dtype::i32},
      {"torch.int16", Dtype::i16},   {"torch.int8", Dtype::i8},     {"torch.uint8", Dtype::u8},
      {"torch.bool", Dtype::boolean}};
  for (const auto& [known, dtype] : names) {
    if (name == known) return dtype;
  }
  return std::nullopt;
}

// Offsets of a chunk with the name of its tensor, to find where it is.
using ChunkKey = std::pair<std::string_view, std::vector<int64_t>>;

class MetadataReader {
 public:
  MetadataReader(const Pickle& pickle, const std::string& where) : where_(where) {
    const PickleValue* const tensors = attribute(*pickle.root, "state_dict_metadata");
    const PickleValue* const places = attribute(*pickle.root, "storage_data");
    if (!is_object(*pickle.root, ".Metadata") || tensors == nullptr || places == nullptr ||
        !tensors->is(Kind::dict) || !places->is(Kind::dict))
      refuse_metadata("this is not the metadata of a distributed checkpoint", where_);
    const auto found = places->items(), named = tensors->items();
    for (size_t i = 0; i + 1 < found.size(); i += 2) read_place(*found[i], *found[i + 1]);
    for (size_t i = 0; i + 1 < named.size(); i += 2) {
      if (!named[i]->is(Kind::text)) refuse_metadata("the name of an entry is not a text", where_);
      read_entry(named[i]->text(), *named[i + 1]);
    }
  }
  DistMetadata take() { return std::move(result_); }

 private:
  std::vector<int64_t> numbers(const PickleValue* value) const {
    std::vector<int64_t> result;
    if (value == nullptr || !value->is(Kind::tuple) || value->items().size() > most_dims)
      refuse_metadata("a shape is not valid", where_);
    for (const PickleValue* item : value->items()) {
      if (!item->is(Kind::integer) || item->integer() < 0) refuse_metadata("a shape is not valid", where_);
      result.push_back(item->integer());
    }
    return result;
  }

  int64_t count(const PickleValue& object, std::string_view name) const {
    const PickleValue* const value = attribute(object, name);
    if (value == nullptr || !value->is(Kind::integer) || value->integer() < 0)
      refuse_metadata(fmt::format("an item has no valid {}", name), where_);
    return value->integer();
  }

  void read_place(const PickleValue& index, const PickleValue& place) {
    const PickleValue* const name = attribute(index, "fqn");
    const PickleValue* const offsets = attribute(index, "offset");
    const PickleValue* const file = attribute(place, "relative_path");
    if (name == nullptr || !name->is(Kind::text) || file == nullptr || !file->is(Kind::text))
      refuse_metadata("the place of an item is not valid", where_);
    const std::string_view path = file->text();
    if (path.empty() || path.size() > most_file_name_bytes ||
        path.find_first_of(std::string_view("/\0", 2)) != path.npos)
      refuse_metadata(fmt::format("'{}' is not the name of a file in the folder", printable(path)), where_);
    const PickleValue* const transforms = attribute(place, "transform_descriptors");
    if (transforms != nullptr && !transforms->is(Kind::none))
      refuse_metadata(fmt::format("'{}' is transformed (compressed)", printable(name->text())), where_);
    const bool whole = offsets == nullptr || offsets->is(Kind::none);
    const DistItem item{std::string(path), count(place, "offset"), count(place, "length")};
    places_[{name->text(), whole ? std::vector<int64_t>() : numbers(offsets)}] = item;
  }

  DistItem place_of(std::string_view name, const std::vector<int64_t>& offsets) const {
    const auto found = places_.find({name, offsets});
    if (found == places_.end())
      refuse_metadata(fmt::format("the place of a part of '{}' is missing", printable(name)), where_);
    return found->second;
  }

  void read_entry(std::string_view text, const PickleValue& entry) {
    const std::string name(text);
    if (is_object(entry, ".BytesStorageMetadata")) {
      result_.items[name] = place_of(name, {});
      return;
    }
    const PickleValue* const properties = attribute(entry, "properties");
    const PickleValue* const chunks = attribute(entry, "chunks");
    if (!is_object(entry, ".TensorStorageMetadata") || properties == nullptr || chunks == nullptr)
      refuse_metadata(fmt::format("'{}' is neither a tensor nor an object", printable(name)), where_);
    DistTensor tensor{.dtype = dtype_of(*properties, name), .shape = numbers(attribute(entry, "size"))};
    if (chunks->items().size() > places_.size())
      refuse_metadata(fmt::format("'{}' has more parts than there are in all files", printable(name)),
                      where_);
    for (const PickleValue* chunk : chunks->items()) {
      DistChunk& added = tensor.chunks.emplace_back();
      added.offsets = numbers(attribute(*chunk, "offsets"));
      added.sizes = numbers(attribute(*chunk, "sizes"));
      added.item = place_of(name, added.offsets);
    }
    grid_of(tensor, name, where_);
    for (const DistChunk& chunk : tensor.chunks) {
      int64_t bytes = size_of(tensor.dtype);
      for (const int64_t size : chunk.sizes) bytes *= size;
      if (bytes > chunk.item.bytes)
        refuse_metadata(fmt::format("a part of '{}' is shorter than its elements", printable(name)), where_);
    }
    if (result_.tensors.emplace(name, std::move(tensor)).second) result_.order.push_back(name);
  }

  // A tuple that begins with the dtype, or attributes.
  Dtype dtype_of(const PickleValue& properties, const std::string& name) const {
    const PickleValue* value = attribute(properties, "dtype");
    const PickleValue* const state = state_of(properties);
    if (value == nullptr && state != nullptr && state->is(Kind::tuple) && !state->items().empty())
      value = state->items()[0];
    const std::optional<Dtype> dtype = value == nullptr ? std::nullopt : dtype_named(value->text());
    if (!dtype) refuse_metadata(fmt::format("the dtype of '{}' is not supported", printable(name)), where_);
    return *dtype;
  }

  std::string where_;
  std::map<ChunkKey, DistItem> places_;
  DistMetadata result_;
};

}  // namespace

size_t ChunkGrid::find(size_t dimension, int64_t at) const {
  const std::vector<int64_t>& sorted = starts[dimension];
  return static_cast<size_t>(std::ranges::upper_bound(sorted, at) - sorted.begin()) - 1;
}

ChunkGrid grid_of(const DistTensor& tensor, const std::string& name, const std::string& where) {
  const size_t dims = tensor.shape.size();
  const auto refuse = [&] {
    refuse_metadata(fmt::format("the parts of '{}' do not make it whole", printable(name)), where);
  };
  int64_t numel = size_of(tensor.dtype);
  for (const int64_t size : tensor.shape) {
    if (size == 0 || __builtin_mul_overflow(numel, size, &numel)) refuse();
  }
  ChunkGrid grid{.starts = std::vector<std::vector<int64_t>>(dims)};
  for (const DistChunk& chunk : tensor.chunks) {
    if (chunk.offsets.size() != dims || chunk.sizes.size() != dims) refuse();
    for (size_t i = 0; i < dims; ++i) grid.starts[i].push_back(chunk.offsets[i]);
  }
  size_t cells = 1;
  for (std::vector<int64_t>& starts : grid.starts) {
    std::ranges::sort(starts);
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    if (starts.empty() || starts[0] != 0) refuse();
    // No product of these exceeds the number of chunks in a grid.
    if (starts.size() > tensor.chunks.size() / cells) refuse();
    cells *= starts.size();
  }
  if (cells != tensor.chunks.size()) refuse();
  grid.cells.resize(cells);
  for (const DistChunk& chunk : tensor.chunks) {
    size_t cell = 0;
    for (size_t i = 0; i < dims; ++i) {
      const size_t index = grid.find(i, chunk.offsets[i]);
      const int64_t end = index + 1 < grid.starts[i].size() ? grid.starts[i][index + 1] : tensor.shape[i];
      if (chunk.offsets[i] >= end || chunk.sizes[i] != end - chunk.offsets[i]) refuse();
      cell = cell * grid.starts[i].size() + index;
    }
    if (grid.cells[cell] != nullptr) refuse();
    grid.cells[cell] = &chunk;
  }
  return grid;
}

DistMetadata parse_dist_metadata(std::string_view text, const std::string& where) {
  return MetadataReader(parse_pickle(text, where, {.fix = advice}), where).take();
}

}  // namespace teratron
