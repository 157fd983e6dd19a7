#include "teratron/comm/transport/address_table.h"

#include <gtest/gtest.h>

#include "teratron/testing/sockets.h"

namespace teratron {
namespace {

SocketAddress address_of(int64_t host, int64_t rank) {
  return {.address = fmt::format("10.{}.{}.12", 100 + host / 250, host % 250),
          .port = static_cast<int>(1 + rank * 7919 % 65535)};
}

void expect_equal(const AddressTable& table, const std::vector<SocketAddress>& expected) {
  ASSERT_EQ(table.size(), std::ssize(expected));
  for (int64_t rank = 0; rank < table.size(); ++rank) {
    EXPECT_EQ(table.at(rank).address, expected[rank].address) << rank;
    EXPECT_EQ(table.at(rank).port, expected[rank].port) << rank;
  }
}

/// Ranks are numbered host by host, or one on each host after the other.
TEST(AddressTable, HasTheAddressOfEveryRankInAFewBytes) {
  const int64_t ranks_per_host = 8;
  for (const int64_t ranks : {1, 3, 16, 1024, 16384}) {
    const int64_t hosts = (ranks + ranks_per_host - 1) / ranks_per_host;
    for (const bool round_robin : {false, true}) {
      AddressTable table;
      std::vector<SocketAddress> expected;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        expected.push_back(address_of(round_robin ? rank % hosts : rank / ranks_per_host, rank));
        table.add(expected.back());
      }
      expect_equal(table, expected);
      const std::string bytes = table.encode();
      expect_equal(AddressTable::decode(bytes), expected);
      const bool successive = !round_robin && ranks % ranks_per_host == 0;
      if (successive) {
        EXPECT_LE(std::ssize(bytes), 5 * ranks);
      }
      EXPECT_LE(std::ssize(bytes), 22 * ranks) << "docs/scaling.md";
    }
  }
}

TEST(AddressTable, TakesAddressesOfIPv6) {
  AddressTable table;
  table.add({.address = "fe80::1ff:fe23:4567:890a", .port = 65535});
  table.add({.address = "::1", .port = 1});
  expect_equal(AddressTable::decode(table.encode()), {{"fe80::1ff:fe23:4567:890a", 65535}, {"::1", 1}});
}

TEST(AddressTable, RefusesWhatIsNotATable) {
  AddressTable table;
  for (int64_t rank = 0; rank < 3; ++rank) table.add(address_of(rank / 2, rank));
  const std::string bytes = table.encode();
  const size_t first = sizeof(uint32_t) + 1 + std::string("10.100.0.12").size() + 2 * sizeof(uint16_t);
  for (size_t size = 1; size < bytes.size(); ++size) {
    if (size == first) continue;  // the table of two ranks
    EXPECT_NE(fault_of([&] { AddressTable::decode(bytes.substr(0, size)); }), "no fault") << size;
  }
  const std::string malformed =
      "malformed addresses of ranks arrived: is it the same version of the program?";
  std::string huge = bytes, none = bytes, closed = bytes, name = bytes;
  huge[3] = '\xff';  // some 4e9 ranks
  EXPECT_EQ(fault_of([&] { AddressTable::decode(huge); }), malformed);
  none.replace(0, sizeof(uint32_t), sizeof(uint32_t), '\0');
  EXPECT_EQ(fault_of([&] { AddressTable::decode(none); }), malformed) << "a run of no ranks";
  closed.replace(bytes.size() - sizeof(uint16_t), sizeof(uint16_t), sizeof(uint16_t), '\0');
  EXPECT_EQ(fault_of([&] { AddressTable::decode(closed); }), malformed) << "port 0";
  name[sizeof(uint32_t) + 1] = 'x';
  EXPECT_NE(fault_of([&] { AddressTable::decode(name); }).find("is not the address of a rank"),
            std::string::npos);
}

}  // namespace
}  // namespace teratron
