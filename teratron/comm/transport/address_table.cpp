#include "teratron/comm/transport/address_table.h"

#include <algorithm>
#include <cstring>

#include "teratron/base/error.h"

namespace teratron {
namespace {

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

[[noreturn]] void fail_malformed() {
  throw Fault("malformed addresses of ranks arrived: is it the same version of the program?");
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  bool done() const { return rest_.empty(); }
  std::string_view take(size_t size) {
    if (size > rest_.size()) fail_malformed();
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

 private:
  std::string_view rest_;
};

}  // namespace

void AddressTable::add(const SocketAddress& address) {
  ports_.push_back(static_cast<uint16_t>(address.port));
  if (runs_.empty() || runs_.back().address != address.address) runs_.push_back({.address = address.address});
  runs_.back().end = size();
}

SocketAddress AddressTable::at(int64_t rank) const {
  TERATRON_ASSERT(rank >= 0 && rank < size());
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), rank,
                                    [](int64_t sought, const Run& one) { return sought < one.end; });
  return {.address = run->address, .port = ports_[rank]};
}

/// For each run: how many ranks, the length of their address, the address, and their ports.
std::string AddressTable::encode() const {
  std::string bytes;
  int64_t rank = 0;
  for (const Run& run : runs_) {
    append(bytes, static_cast<uint32_t>(run.end - rank));
    append(bytes, static_cast<uint8_t>(run.address.size()));
    bytes += run.address;
    for (; rank < run.end; ++rank) append(bytes, ports_[rank]);
  }
  return bytes;
}

AddressTable AddressTable::decode(std::string_view bytes) {
  AddressTable table;
  Reader reader(bytes);
  while (!reader.done()) {
    const auto ranks = reader.take<uint32_t>();
    const auto length = reader.take<uint8_t>();
    const std::string address(reader.take(length));
    Reader ports(reader.take(size_t{ranks} * sizeof(uint16_t)));
    if (ports.done()) fail_malformed();
    while (!ports.done()) {
      const SocketAddress one{.address = address, .port = ports.take<uint16_t>()};
      if (one.port == 0) fail_malformed();
      table.add(one);
    }
    parse_socket_address(to_string(table.at(table.size() - 1)));
  }
  return table;
}

}  // namespace teratron
