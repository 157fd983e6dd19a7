#include "teratron/pickle/pickle_writer.h"

#include <bit>

#include "teratron/base/error.h"
#include "teratron/pickle/globals.h"
#include "teratron/pickle/little_endian.h"

namespace teratron {

void PickleWriter::integer(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (value >= INT32_MIN && value <= INT32_MAX) {
    text_ += 'J' + little_endian(bits, 4);
  } else {
    text_ += std::string("\x8a\x08") + little_endian(bits, 8);
  }
}

void PickleWriter::real(double value) {
  text_ += 'G';
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) text_ += static_cast<char>(bits >> shift & 0xff);
}

void PickleWriter::text(std::string_view value) {
  text_ += 'X' + little_endian(value.size(), 4);
  text_ += value;
}

void PickleWriter::tuple(const std::vector<int64_t>& values) {
  text_ += '(';
  for (const int64_t value : values) integer(value);
  text_ += 't';
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  text_ += fmt::format("c{}\n{}\n", module, name);
}

void PickleWriter::begin(PickledDict kind) {
  if (kind == PickledDict::plain) {
    text_ += '}';
  } else if (kind == PickledDict::ordered) {
    text_ += "ccollections\nOrderedDict\n)R";
  } else {
    object("argparse", "Namespace");
    text_ += '}';
  }
  text_ += '(';
}

void PickleWriter::object(std::string_view module, std::string_view name) {
  global(module, name);
  text_ += ")\x81";
}

void PickleWriter::begin_object(std::string_view module, std::string_view name) {
  object(module, name);
  text_ += "}(";
}

void PickleWriter::begin_call(std::string_view module, std::string_view name) {
  global(module, name);
  text_ += '(';
}

void PickleWriter::end(PickledDict kind) {
  text_ += kind == PickledDict::name_space ? "ub" : "u";
}

void PickleWriter::tensor(Dtype dtype, const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t count = 1;
  for (size_t i = shape.size(); i-- > 0; count *= shape[i]) strides[i] = count;
  global("torch._utils", "_rebuild_tensor_v2");
  text_ += "((";
  text("storage");
  text_ += fmt::format("c{}\n", storage_class(dtype));
  text(std::to_string(storages_.size()));
  text("cpu");
  integer(count);
  text_ += "tQ";
  integer(0);
  tuple(shape);
  tuple(strides);
  boolean(false);  // requires_grad
  global("collections", "OrderedDict");
  text_ += ")RtR";
  storages_.push_back(count * size_of(dtype));
}

}  // namespace teratron
