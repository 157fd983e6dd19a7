#include "teratron/comm/transport/interfaces.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace teratron {
namespace {

using Named = std::pair<std::string, std::string>;  // name and numeric address

/// IPv4 before IPv6. Without addresses that are valid on one link only.
std::vector<Named> addresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, freeifaddrs);
  std::vector<Named> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = first; one; one = one->ifa_next) {
      if (!one->ifa_addr || one->ifa_addr->sa_family != family) continue;
      const bool v4 = family == AF_INET;
      if (!v4 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr))
        continue;
      std::array<char, NI_MAXHOST> text{};
      const socklen_t length = v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      const int error =
          getnameinfo(one->ifa_addr, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
      if (error == 0) found.emplace_back(one->ifa_name, text.data());
    }
  }
  return found;
}

}  // namespace

std::string address_of_interface(const std::string& name) {
  const std::vector<Named> all = addresses();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Named& one) { return one.first == name; });
  return found == all.end() ? "" : found->second;
}

std::vector<std::string> interfaces_with_addresses() {
  std::vector<std::string> texts;
  for (const auto& [name, address] : addresses()) texts.push_back(fmt::format("{} ({})", name, address));
  return texts;
}

}  // namespace teratron
