#include "teratron/serve/browser_policy.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

httplib::Request request_of(const std::string& host, const std::string& origin = "") {
  httplib::Request request;
  request.method = "POST";
  if (!host.empty()) request.set_header("Host", host);
  if (!origin.empty()) request.set_header("Origin", origin);
  return request;
}

TEST(BrowserPolicy, KnowsTheNamesOfLoopback) {
  const BrowserPolicy policy({.hosts = {"Models.example"}});
  for (const char* host : {"localhost", "localhost:5000", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:80", "[::1]",
                           "[::1]:5000", "models.example", "models.example:8443"})
    EXPECT_FALSE(policy.problem(request_of(host))) << host;
  for (const char* host :
       {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:5000", "127.0.0.2",
        "::1", "[::2]", "localhost:5000@evil.example", "[::1", "localhost.", "xlocalhost", "0.0.0.0"})
    EXPECT_TRUE(policy.problem(request_of(host))) << host;
  EXPECT_FALSE(policy.problem(request_of(""))) << "HTTP/1.0";
  EXPECT_FALSE(BrowserPolicy({.any_host = true}).problem(request_of("evil.example")));
}

TEST(BrowserPolicy, RefusesPagesOfOtherOrigins) {
  const BrowserPolicy policy({.origins = {"https://app.example", "http://localhost:3000"}});
  const std::string host = "127.0.0.1:5000";
  for (const char* origin : {"http://127.0.0.1:5000", "https://127.0.0.1:5000", "https://app.example",
                             "https://App.Example:443", "http://localhost:3000"})
    EXPECT_FALSE(policy.problem(request_of(host, origin))) << origin;
  for (const char* origin : {"null", "http://app.example", "https://app.example:8443",
                             "https://app.example.evil", "http://127.0.0.1", "http://localhost:5000",
                             "http://127.0.0.1:5001", "https://evil.example", "file://"})
    EXPECT_TRUE(policy.problem(request_of(host, origin))) << origin;
  EXPECT_FALSE(policy.problem(request_of("localhost", "http://localhost"))) << "port 80 is not written";
  EXPECT_FALSE(BrowserPolicy({.origins = {"*"}}).problem(request_of(host, "https://evil.example")));
  EXPECT_FALSE(BrowserPolicy({.origins = {"null"}}).problem(request_of(host, "null")));
}

TEST(BrowserPolicy, AnswersPreflightsOfAllowedOrigins) {
  const BrowserPolicy policy({.origins = {"https://app.example"}});
  httplib::Request request = request_of("localhost:5000", "https://app.example");
  httplib::Response response;
  EXPECT_FALSE(policy.answer_preflight(request, response));
  request.method = "OPTIONS";
  EXPECT_FALSE(policy.answer_preflight(request, response)) << "no method is asked for";
  request.set_header("Access-Control-Request-Method", "POST");
  request.set_header("Access-Control-Request-Headers", "authorization,content-type,x-stainless-lang");
  EXPECT_TRUE(policy.answer_preflight(request, response));
  EXPECT_EQ(response.get_header_value("Access-Control-Allow-Headers"),
            "authorization,content-type,x-stainless-lang");
  EXPECT_NE(response.get_header_value("Access-Control-Allow-Methods").find("POST"), std::string::npos);
  policy.share(request, response);
  policy.share(request, response);
  EXPECT_EQ(response.get_header_value_count("Access-Control-Allow-Origin"), 1U);
  EXPECT_EQ(response.get_header_value("Access-Control-Allow-Origin"), "https://app.example");
  EXPECT_EQ(response.get_header_value("Vary"), "Origin");
  httplib::Request foreign = request_of("localhost:5000", "https://evil.example");
  foreign.method = "OPTIONS";
  foreign.set_header("Access-Control-Request-Method", "POST");
  httplib::Response refused;
  EXPECT_FALSE(policy.answer_preflight(foreign, refused));
  policy.share(foreign, refused);
  EXPECT_FALSE(refused.has_header("Access-Control-Allow-Origin"));
}

TEST(BrowserPolicy, ValuesOfFlagsAreOriginsAndNames) {
  for (const char* origin : {"https://app.example", "http://localhost:3000", "*", "null",
                             "chrome-extension://abcdef", "http://[::1]:3000"})
    EXPECT_FALSE(origin_problem(origin)) << origin;
  for (const char* origin : {"", "app.example", "https://", "https://app.example/", "https://a/b",
                             "https://*.example", "https://a,https://b", "://a"})
    EXPECT_TRUE(origin_problem(origin)) << origin;
  for (const char* host : {"models.example", "10.0.0.5", "[fe80::1]", "localhost"})
    EXPECT_FALSE(host_problem(host)) << host;
  for (const char* host : {"", "models.example:5000", "http://models.example", "a b", "*", "*.example"})
    EXPECT_TRUE(host_problem(host)) << host;
}

}  // namespace
}  // namespace teratron
