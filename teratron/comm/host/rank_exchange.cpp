#include "teratron/comm/host/rank_exchange.h"

#include <cstring>
#include <string_view>

#include "teratron/base/error.h"

namespace teratron {

namespace {

void append(std::string& to, int64_t rank, const std::string& bytes) {
  const int64_t header[2] = {rank, static_cast<int64_t>(bytes.size())};
  to.append(reinterpret_cast<const char*>(header), sizeof(header));
  to += bytes;
}

}  // namespace

std::vector<std::string> gather_bytes(HostGroup& group, const std::string& bytes) {
  std::vector<std::string> all = group.all_gather_bytes(bytes);
  if (group.rank() != 0) all.clear();
  return all;
}

std::string broadcast_from_rank_0(HostGroup& group, const std::string& bytes) {
  return group.all_gather_bytes(group.rank() == 0 ? bytes : "").at(0);
}

RankBytes exchange_bytes(HostGroup& group, const RankBytes& parts) {
  std::string mine;
  for (const auto& [rank, bytes] : parts) append(mine, rank, bytes);
  const std::vector<std::string> all = group.all_gather_bytes(mine);
  RankBytes received;
  for (size_t from = 0; from < all.size(); ++from) {
    std::string_view left = all[from];
    while (!left.empty()) {
      int64_t header[2];
      TERATRON_ASSERT(left.size() >= sizeof(header), "{} bytes", left.size());
      std::memcpy(header, left.data(), sizeof(header));
      left.remove_prefix(sizeof(header));
      const auto bytes = static_cast<size_t>(header[1]);
      TERATRON_ASSERT(bytes <= left.size(), "{} of {} bytes", bytes, left.size());
      if (header[0] == group.rank()) received[static_cast<int64_t>(from)] = left.substr(0, bytes);
      left.remove_prefix(bytes);
    }
  }
  return received;
}

}  // namespace teratron
