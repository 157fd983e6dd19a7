#include "teratron/cli/serve/access_options.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "teratron/base/environment.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/settings/secret_flags.h"

namespace teratron {

namespace {

constexpr const char* make_key = "Make one with: openssl rand -hex 32";

struct GivenKey {
  std::string text, where;
};

GivenKey read_key_file(const std::string& path) {
  std::error_code error;
  const std::filesystem::perms others = std::filesystem::perms::others_read;
  if ((std::filesystem::status(path, error).permissions() & others) == others && !error)
    notice("all users of this machine can read the API key in {}: chmod 600 hides it", printable(path, 200));
  const std::string text = read_text(path, {.kind = ExitCode::config, .max_bytes = size_t{1} << 16});
  return {.text = text.substr(0, text.find_first_of("\r\n")), .where = path};
}

// Flags count more than the environment.
std::optional<GivenKey> given_key(const Arguments& args) {
  if (args.api_key && args.api_key_file) {
    throw config_error({.what = "two API keys are given",
                        .where = "--api-key",
                        .fix = "Give only one of --api-key and --api-key-file"});
  }
  if (args.api_key) return GivenKey{.text = *args.api_key, .where = "--api-key"};
  if (args.api_key_file) return read_key_file(*args.api_key_file);
  const std::string variable = secret_variable(arguments_schema().field("api_key"));
  const std::optional<std::string> value = process_environment(variable.c_str());
  return value ? std::optional(GivenKey{.text = *value, .where = variable}) : std::nullopt;
}

std::string api_key_of(const Arguments& args) {
  const std::optional<GivenKey> key = given_key(args);
  if (!key) return "";
  // A server that nobody protects must not look as if it were.
  if (key->text.empty())
    throw config_error({.what = "the API key is empty", .where = key->where, .fix = make_key});
  if (std::any_of(key->text.begin(), key->text.end(), [](char c) { return c <= ' ' || c > '~'; })) {
    throw config_error({.what = "the API key has a character that a header cannot hold",
                        .where = key->where,
                        .fix = "Use letters, digits and marks of ASCII"});
  }
  return key->text;
}

void check(const std::optional<std::string>& problem, const char* flag, const char* example) {
  if (problem) throw config_error({.what = *problem, .where = flag, .fix = example});
}

bool is_loopback_address(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24U == 127;
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

}  // namespace

bool is_loopback(const std::string& host) {
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, nullptr, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
  for (const addrinfo* each = found; each; each = each->ai_next) {
    if (!is_loopback_address(*each->ai_addr)) return false;
  }
  return true;
}

AccessOptions access_options(const Arguments& args) {
  for (const std::string& host : args.allow_host)
    check(host_problem(host), "--allow-host", "Write a name or an address, such as models.example");
  for (const std::string& origin : args.cors_origin)
    check(origin_problem(origin), "--cors-origin",
          "Write scheme, host and port, such as https://app.example:8443");
  AccessOptions access{.api_key = api_key_of(args),
                       .browsers = {.hosts = args.allow_host, .origins = args.cors_origin}};
  if (is_loopback(args.host)) {
    access.browsers.hosts.push_back(args.host);
  } else {
    access.browsers.any_host = args.allow_host.empty();
  }
  return access;
}

}  // namespace teratron
