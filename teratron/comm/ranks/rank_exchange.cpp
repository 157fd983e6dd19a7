#include "teratron/comm/ranks/rank_exchange.h"

#include <array>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "teratron/base/error.h"

namespace teratron {

namespace {

struct Parcel {
  int64_t from = 0;
  int64_t to = 0;
  std::string bytes;
};

using Header = std::array<int64_t, 3>;  // from, to, size

std::string pack(const std::vector<Parcel>& parcels) {
  std::string packed;
  for (const Parcel& parcel : parcels) {
    const Header header = {parcel.from, parcel.to, static_cast<int64_t>(parcel.bytes.size())};
    packed.append(reinterpret_cast<const char*>(header.data()), sizeof(header));
    packed += parcel.bytes;
  }
  return packed;
}

void unpack(std::string_view packed, std::vector<Parcel>& parcels) {
  while (!packed.empty()) {
    Header header = {};
    const size_t left = packed.size();
    if (left >= sizeof(header)) std::memcpy(header.data(), packed.data(), sizeof(header));
    const auto size = static_cast<size_t>(header[2]);
    if (left < sizeof(header) || header[2] < 0 || size > left - sizeof(header))
      throw Fault(fmt::format("malformed message: {} bytes are left of one with parts for ranks", left));
    parcels.push_back({header[0], header[1], std::string(packed.substr(sizeof(header), size))});
    packed.remove_prefix(sizeof(header) + size);
  }
}

}  // namespace

// Bruck's algorithm for few and unequal parts: before the round of distance 2^k, every part is at a rank
// whose distance to its receiver is a multiple of 2^k.
RankBytes exchange_bytes(HostGroup& group, const RankBytes& parts) {
  const int64_t rank = group.rank(), size = group.size();
  std::vector<Parcel> held;
  for (const auto& [to, bytes] : parts) {
    TERATRON_ASSERT(to >= 0 && to < size, "rank {} of {}", to, size);
    held.push_back({rank, to, bytes});
  }
  for (int64_t distance = 1; distance < size; distance *= 2) {
    std::vector<Parcel> kept, forwarded;
    for (Parcel& parcel : held) {
      const int64_t left = (parcel.to - rank + size) % size;
      ((left & distance) != 0 ? forwarded : kept).push_back(std::move(parcel));
    }
    group.send_bytes((rank + distance) % size, pack(forwarded));
    unpack(group.receive_bytes((rank - distance + size) % size), kept);
    held = std::move(kept);
  }
  RankBytes received;
  for (Parcel& parcel : held) received[parcel.from] = std::move(parcel.bytes);
  return received;
}

}  // namespace teratron
