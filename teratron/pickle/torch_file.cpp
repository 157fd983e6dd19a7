#include "teratron/pickle/torch_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/pickle/unpickler.h"
#include "teratron/pickle/zip_archive.h"

namespace teratron {

namespace {

using Kind = PickleValue::Kind;

constexpr int64_t most_pickle_bytes = int64_t{24} << 20;
constexpr std::string_view stream_magic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);

// Elements in row-major order without gaps.
bool is_contiguous(const PickledTensor& tensor) {
  int64_t stride = 1;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != stride) return false;
    stride *= tensor.shape[i];
  }
  return true;
}

// Offsets of the elements [begin, end), in row-major order, from the tensor's first one.
std::vector<int64_t> offsets(const PickledTensor& tensor, int64_t begin, int64_t end) {
  std::vector<int64_t> index(tensor.shape.size(), 0), result;
  int64_t at = 0;
  for (size_t i = index.size(), left = static_cast<size_t>(begin); i-- > 0;) {
    index[i] = static_cast<int64_t>(left) % tensor.shape[i];
    left /= static_cast<size_t>(tensor.shape[i]);
    at += index[i] * tensor.strides[i];
  }
  for (int64_t element = begin; element < end; ++element) {
    result.push_back(at);
    for (size_t i = index.size(); i-- > 0;) {
      at += tensor.strides[i];
      if (++index[i] < tensor.shape[i]) break;
      at -= tensor.strides[i] * tensor.shape[i];
      index[i] = 0;
    }
  }
  return result;
}

}  // namespace

int64_t numel(const PickledTensor& tensor) {
  int64_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;
  return count;
}

TorchFile::TorchFile(ByteSourcePtr source, std::string where)
    : source_(std::move(source)), where_(std::move(where)) {
  ZipArchive::is_zip(*source_) ? open_zip() : open_stream();
}

TorchFile::TorchFile(const std::filesystem::path& path)
    : TorchFile(open_bytes(path), printable(path.string(), 4096)) {}

void TorchFile::fail(const std::string& what) const {
  throw checkpoint_error(
      {.what = what, .where = where_, .fix = "Use an undamaged file that torch.save wrote"});
}

void TorchFile::open_zip() {
  const ZipArchive zip(source_, where_);
  std::string prefix;
  for (const auto& [name, entry] : zip.entries()) {
    if (name.ends_with("/data.pkl")) prefix = name.substr(0, name.size() - std::strlen("data.pkl"));
  }
  if (prefix.empty()) fail("the zip file holds no data.pkl");
  // torch.save packs none; unpacking would let a small file fill the memory.
  const auto open = [&](const std::string& name) {
    const auto entry = zip.entries().find(name);
    if (entry != zip.entries().end() && entry->second.method != 0)
      fail(fmt::format("'{}' is compressed", printable(name)));
    return zip.open(name);
  };
  if (zip.entries().contains(prefix + "byteorder")) {
    const ByteSourcePtr order = open(prefix + "byteorder");
    if (order->size() > 16 || read_bytes(*order, order->size(), 0) != "little")
      fail("the tensors are not in little-endian byte order");
  }
  const ByteSourcePtr data = open(prefix + "data.pkl");
  if (data->size() > most_pickle_bytes)
    fail(fmt::format("data.pkl is larger than {} MiB", most_pickle_bytes >> 20));
  parse(read_bytes(*data, data->size(), 0));
  for (const PickledStorage& storage : pickle_.storages) {
    storages_.push_back(open(prefix + "data/" + storage.key));
    if (storage.numel > storages_.back()->size() / size_of(storage.dtype))
      fail(
          fmt::format("storage '{}' is shorter than its {} elements", printable(storage.key), storage.numel));
  }
}

void TorchFile::parse(std::string text) {
  text_ = std::make_unique<const std::string>(std::move(text));
  pickle_ = parse_pickle(*text_, where_);
}

// Pickles: a magic number, the version, the system, the object, the keys of the storages in their order.
void TorchFile::open_stream() {
  const std::string head = read_bytes(*source_, std::min(source_->size(), most_pickle_bytes), 0);
  size_t at = 0;
  const auto next = [&] {
    Pickle pickle = parse_pickle(std::string_view(head).substr(at), where_);
    at += pickle.bytes;
    return pickle;
  };
  if (head.find(stream_magic) != 4 && head.find(stream_magic) != 2)
    fail("this is not a file of torch.save (neither its zip format nor its stream format)");
  next();
  if (const Pickle version = next(); version.root->integer() != 1001)
    fail(fmt::format("version {} of torch's stream format is not supported", version.root->integer()));
  const Pickle system = next();
  const PickleValue* const little = system.root->find("little_endian");
  if (little == nullptr || little->integer() != 1) fail("the tensors are not in little-endian byte order");
  const size_t begin = at;
  next();
  parse(head.substr(begin, at - begin));
  const Pickle keys = next();
  place_stream_storages(*keys.root, static_cast<int64_t>(at));
}

void TorchFile::place_stream_storages(const PickleValue& keys, int64_t at) {
  std::map<std::string, size_t, std::less<>> index_of;
  for (size_t i = 0; i < pickle_.storages.size(); ++i) index_of[pickle_.storages[i].key] = i;
  storages_.resize(pickle_.storages.size());
  for (const PickleValue* key : keys.items()) {
    const auto found = index_of.find(key->text());
    if (found == index_of.end() || storages_[found->second] != nullptr)
      fail(fmt::format("the file's storage '{}' belongs to no tensor", printable(key->text())));
    const PickledStorage& storage = pickle_.storages[found->second];
    int64_t count = 0;
    source_->read(&count, sizeof(count), at);
    at += static_cast<int64_t>(sizeof(count));
    if (count != storage.numel || count > (source_->size() - at) / size_of(storage.dtype))
      fail(
          fmt::format("storage '{}' is shorter than its {} elements", printable(storage.key), storage.numel));
    storages_[found->second] = bytes_within(source_, at, count * size_of(storage.dtype));
    at += count * size_of(storage.dtype);
  }
  if (std::ranges::count(storages_, nullptr) > 0) fail("the file lacks the data of some tensors");
}

std::vector<char> TorchFile::read(const PickledTensor& tensor) const {
  std::vector<char> bytes(static_cast<size_t>(numel(tensor) * size_of(dtype_of(tensor))));
  read(tensor, 0, numel(tensor), bytes.data());
  return bytes;
}

void TorchFile::read(const PickledTensor& tensor, int64_t begin, int64_t end, char* out) const {
  const int64_t element = size_of(dtype_of(tensor));
  TERATRON_ASSERT(0 <= begin && begin <= end && end <= numel(tensor), "{}", begin);
  if (begin == end) return;
  const ByteSource& storage = *storages_[tensor.storage];
  if (is_contiguous(tensor))
    return storage.read(out, (end - begin) * element, (tensor.offset + begin) * element);
  const std::vector<int64_t> at = offsets(tensor, begin, end);
  const auto [lowest, highest] = std::ranges::minmax(at);
  std::vector<char> span(static_cast<size_t>((highest - lowest + 1) * element));
  storage.read(span.data(), static_cast<int64_t>(span.size()), (tensor.offset + lowest) * element);
  for (const int64_t offset : at) {
    std::memcpy(out, span.data() + (offset - lowest) * element, static_cast<size_t>(element));
    out += element;
  }
}

}  // namespace teratron
