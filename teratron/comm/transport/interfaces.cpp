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

#include "teratron/base/strings.h"

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

bool accepts_interface(const std::string& choice, const std::string& name) {
  const bool excludes = choice.starts_with('^');
  std::string list = choice.substr(excludes ? 1 : 0);
  const bool exact = list.starts_with('=');
  if (exact) list.erase(0, 1);
  const std::vector<std::string> words = split(list, ',');
  const bool named = std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return exact ? name == word : name.starts_with(word);
  });
  return named != excludes;
}

std::string address_of_interface(const std::string& choice, const std::string& preferred) {
  std::vector<Named> accepted = addresses();
  std::erase_if(accepted, [&](const Named& one) { return !accepts_interface(choice, one.first); });
  const bool has_preferred = std::any_of(accepted.begin(), accepted.end(),
                                         [&](const Named& one) { return one.second == preferred; });
  if (has_preferred) return preferred;
  return accepted.empty() ? "" : accepted.front().second;
}

std::vector<std::string> interfaces_with_addresses() {
  std::vector<std::string> texts;
  for (const auto& [name, address] : addresses()) texts.push_back(fmt::format("{} ({})", name, address));
  return texts;
}

}  // namespace teratron
