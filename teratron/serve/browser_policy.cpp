#include "teratron/serve/browser_policy.h"

#include <algorithm>

#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/base/strings.h"

namespace teratron {

namespace {

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

bool is_port(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "localhost:5000" as "localhost", "[::1]:5000" as "[::1]"; what is not a host stays as it is.
std::string without_port(const std::string& host) {
  const size_t begin = host.starts_with("[") ? host.find(']') : 0;
  const size_t colon = begin == host.npos ? host.npos : host.find(':', begin);
  if (colon == host.npos || !is_port(std::string_view(host).substr(colon + 1))) return to_lower(host);
  return to_lower(host.substr(0, colon));
}

// As browsers write it: in lower case, without the usual port.
std::string canonical_origin(const std::string& origin) {
  std::string text = to_lower(origin);
  for (const auto& [scheme, port] : {std::pair("http://", ":80"), std::pair("https://", ":443")}) {
    if (text.starts_with(scheme) && text.ends_with(port)) text.erase(text.size() - std::string(port).size());
  }
  return text;
}

}  // namespace

BrowserPolicy::BrowserPolicy(const BrowserPolicyOptions& options)
    : hosts_{"localhost", "127.0.0.1", "[::1]"}, any_host_(options.any_host) {
  for (const std::string& host : options.hosts) hosts_.push_back(to_lower(host));
  for (const std::string& origin : options.origins) origins_.push_back(canonical_origin(origin));
  any_origin_ = contains(origins_, "*");
}

bool BrowserPolicy::is_host(const std::string& host) const {
  return any_host_ || contains(hosts_, without_port(host));
}

bool BrowserPolicy::is_shared_with(const std::string& origin) const {
  return any_origin_ || contains(origins_, canonical_origin(origin));
}

std::optional<std::string> BrowserPolicy::problem(const httplib::Request& request) const {
  const std::string host = request.get_header_value("Host"), origin = request.get_header_value("Origin");
  // Only programs that know no HTTP/1.1 leave it out.
  if (request.has_header("Host") && !is_host(host)) {
    return fmt::format("the host '{}' is not one of this server's names: start it with --allow-host NAME",
                       printable(host, 80));
  }
  if (origin.empty() || is_shared_with(origin)) return std::nullopt;
  const std::string page = canonical_origin(origin);
  if (page == canonical_origin("http://" + host) || page == canonical_origin("https://" + host))
    return std::nullopt;
  return fmt::format("pages of '{}' may not use this server: start it with --cors-origin ORIGIN",
                     printable(origin, 80));
}

void BrowserPolicy::share(const httplib::Request& request, httplib::Response& response) const {
  const std::string origin = request.get_header_value("Origin");
  if (origins_.empty() || response.has_header("Vary")) return;
  response.set_header("Vary", "Origin");
  if (origin.empty() || !is_shared_with(origin)) return;
  response.set_header("Access-Control-Allow-Origin", any_origin_ ? "*" : origin);
  response.set_header("Access-Control-Expose-Headers", "Retry-After");
}

bool BrowserPolicy::answer_preflight(const httplib::Request& request, httplib::Response& response) const {
  const std::string origin = request.get_header_value("Origin");
  if (request.method != "OPTIONS" || !request.has_header("Access-Control-Request-Method")) return false;
  if (origin.empty() || !is_shared_with(origin)) return false;
  response.status = 200;
  response.set_header("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT");
  // Clients have further ones, such as OpenAI's X-Stainless-Lang.
  const std::string headers = request.get_header_value("Access-Control-Request-Headers");
  if (!headers.empty()) response.set_header("Access-Control-Allow-Headers", headers);
  if (request.get_header_value("Access-Control-Request-Private-Network") == "true")
    response.set_header("Access-Control-Allow-Private-Network", "true");
  response.set_header("Access-Control-Max-Age", "600");
  return true;
}

std::optional<std::string> origin_problem(std::string_view origin) {
  if (origin == "*" || origin == "null") return std::nullopt;
  const size_t scheme = origin.find("://");
  const bool has_host = scheme != origin.npos && scheme > 0 && origin.size() > scheme + 3;
  if (!has_host) return fmt::format("'{}' is not an origin", printable(origin, 80));
  if (origin.find_first_of("/?#@ *,", scheme + 3) != origin.npos)
    return fmt::format("'{}' is more than the origin of a page", printable(origin, 80));
  return std::nullopt;
}

std::optional<std::string> host_problem(std::string_view host) {
  const bool has_port = !host.starts_with("[") && host.find(':') != host.npos;
  if (!host.empty() && !has_port && host.find_first_of("/?#@ *,") == host.npos) return std::nullopt;
  return fmt::format("'{}' is not a name without a port", printable(host, 80));
}

}  // namespace teratron
