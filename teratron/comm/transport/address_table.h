// Where all ranks of a job listen. Every rank has this table, so it is small: successive ranks with one
// address, those of a host, share it. With 8 ranks a host, about 4 bytes a rank when sent, 8 in memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/comm/transport/socket.h"

namespace teratron {

class AddressTable {
 public:
  /// Adds the next rank, from 0 on.
  void add(const SocketAddress& address);
  int64_t size() const { return std::ssize(ports_); }
  SocketAddress at(int64_t rank) const;

  std::string encode() const;
  /// Throws Fault if the bytes are not an encoded table, of any size.
  static AddressTable decode(std::string_view bytes);

 private:
  struct Run {
    std::string address;
    int64_t end = 0;  // the rank after its last
  };
  std::vector<Run> runs_;  // by rank
  std::vector<uint16_t> ports_;
};

}  // namespace teratron
