// What web pages in a browser may ask of the server.
//
// A browser lets every page send requests to every address that it reaches, such as a server on the same
// machine, and pages that change the address of their name (DNS rebinding) also read the answers. So requests
// name the host that was asked, and the page that asks: both must be known.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <httplib.h>

namespace teratron {

struct BrowserPolicyOptions {
  /// Names of the server, without ports, besides localhost, 127.0.0.1 and [::1].
  std::vector<std::string> hosts = {};
  bool any_host = false;  // others reach the server under names that it does not know
  /// Origins of pages elsewhere, https://app.example:8443, that may ask; "*": all.
  std::vector<std::string> origins = {};
};

class BrowserPolicy {
 public:
  explicit BrowserPolicy(const BrowserPolicyOptions& options);

  /// Why the request is refused. Its Host is not one of the server's, or its Origin neither the server itself
  /// nor one of the others.
  std::optional<std::string> problem(const httplib::Request& request) const;
  /// Lets the page of an allowed origin read the answer.
  void share(const httplib::Request& request, httplib::Response& response) const;
  /// Answers the request in which a browser asks whether a page may send another one (CORS preflight). False:
  /// it is none, or its origin is not allowed.
  bool answer_preflight(const httplib::Request& request, httplib::Response& response) const;

 private:
  bool is_host(const std::string& host) const;
  bool is_shared_with(const std::string& origin) const;

  std::vector<std::string> hosts_, origins_;
  bool any_host_, any_origin_;
};

/// What is wrong with a value of --cors-origin, or of --allow-host.
std::optional<std::string> origin_problem(std::string_view origin);
std::optional<std::string> host_problem(std::string_view host);

}  // namespace teratron
