// What RFC 9112 says of where a request ends.
#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "teratron/serve/chunked_body.h"
#include "teratron/serve/request_head.h"

namespace teratron {
namespace {

const std::string start = "POST /v1/completions HTTP/1.1\r\n";

HeadReader read(const std::string& bytes) {
  HeadReader reader;
  reader.take(bytes);
  return reader;
}

TEST(RequestHead, EndsWithTheEmptyLine) {
  const std::string head = start + "Host: a\r\nContent-Length: 3\r\n\r\n";
  HeadReader reader;
  size_t taken = 0;
  for (const char c : head + "abc") taken += reader.take({&c, 1});
  EXPECT_TRUE(reader.finished() && !reader.refusal());
  EXPECT_EQ(taken, head.size());
  EXPECT_EQ(reader.body().length, 3U);
  EXPECT_FALSE(reader.body().chunked);
  EXPECT_EQ(reader.text(), start + "host: a\r\ncontent-length: 3\r\n\r\n");
}

TEST(RequestHead, FindsTheFramingOfTheBody) {
  const HeadReader chunked = read(start + "HOST: a\r\ntransfer-ENCODING:\t Chunked \r\n\r\n");
  ASSERT_FALSE(chunked.refusal());
  EXPECT_TRUE(chunked.body().chunked);
  EXPECT_EQ(chunked.text().find("chunked"), std::string::npos);
  EXPECT_EQ(read(start + "Host: a\r\n\r\n").body().length, 0U);
  EXPECT_EQ(read("\r\n" + start + "Host: a\r\nContent-Length: 007\r\n\r\n").body().length, 7U);
  EXPECT_EQ(read("GET / HTTP/1.0\r\nContent-Length: 99999999999999999999999\r\n\r\n").body().length,
            UINT64_MAX);
}

// RFC 9112, section 3.2.2: a server takes the host of the target, whatever Host says.
TEST(RequestHead, TakesTheHostOfTheTarget) {
  EXPECT_EQ(read("GET http://b:5000/v1/models?x=1 HTTP/1.1\r\nHost: a\r\n\r\n").text(),
            "GET /v1/models?x=1 HTTP/1.1\r\nhost: b:5000\r\n\r\n");
  EXPECT_EQ(read("OPTIONS https://b HTTP/1.1\r\nX: y\r\nHost: a\r\n\r\n").text(),
            "OPTIONS / HTTP/1.1\r\nx: y\r\nhost: b\r\n\r\n");
  EXPECT_EQ(read("GET /a?b=http://c/d HTTP/1.1\r\nHost: a\r\n\r\n").text(),
            "GET /a?b=http://c/d HTTP/1.1\r\nhost: a\r\n\r\n");
  EXPECT_TRUE(read("GET http:///v1/models HTTP/1.1\r\nHost: a\r\n\r\n").refusal());
  EXPECT_TRUE(read("GET http://b/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").refusal());
  EXPECT_TRUE(read("GET / HTTP/1.1\r\nHost:  \r\n\r\n").refusal());
  EXPECT_FALSE(read("GET / HTTP/1.0\r\n\r\n").refusal());
}

TEST(RequestHead, RefusesWhatReadersUnderstandDifferently) {
  const std::string host = "Host: a\r\n";
  for (const char* fields : {
           "Content-Length: 5\r\nContent-Length: 5\r\n",
           "Content-Length: 5\r\nContent-Length: 6\r\n",
           "Content-Length: 5, 5\r\n",
           "Content-Length: +5\r\n",
           "Content-Length: -5\r\n",
           "Content-Length: 0x5\r\n",
           "Content-Length: 5 5\r\n",
           "Content-Length:\r\n",
           "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
           "Content-Length : 5\r\n",
           "X: 1\r\n Content-Length: 5\r\n",
           "\tContent-Length: 5\r\n",
           "X: a\rContent-Length: 5\r\n",
           "X: a\nContent-Length: 5\r\n",
           "X: a\r\r\n",
           ": 5\r\n",
           "X\r\n",
           "X y: 1\r\n",
           "Host: b\r\n",
           "Host:\r\n",
           "Origin: http://a\r\nOrigin: https://evil.example\r\n",
           "Content-Type: application/json\r\ncontent-type: text/plain\r\n",
           "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
       }) {
    const HeadReader reader = read(start + host + fields + "\r\n");
    ASSERT_TRUE(reader.refusal()) << fields;
    EXPECT_EQ(reader.refusal()->status, 400) << fields;
  }
  for (const char* coding : {"gzip", "gzip, chunked", "chunked, chunked", "xchunked", "identity"}) {
    const HeadReader reader = read(start + host + "Transfer-Encoding: " + coding + "\r\n\r\n");
    ASSERT_TRUE(reader.refusal()) << coding;
    EXPECT_EQ(reader.refusal()->status, 501) << coding;
  }
  EXPECT_TRUE(read("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").refusal());
  EXPECT_TRUE(read(start + host + std::string("X: \0\r\n\r\n", 8)).refusal());
}

TEST(RequestHead, RefusesAtOnce) {
  for (const char* begin :
       {"NONSENSE\r\n", "GET / HTTP/9\r\n", "GET  / HTTP/1.1\r\n", "GET / x HTTP/1.1\r\n", "GET /\r\n",
        "GET / HTTP/1.1\n", "\x16\x03\x01", "G@T / HTTP/1.1\r\n", "GET\t/ HTTP/1.1\r\n"})
    EXPECT_TRUE(read(begin).refusal()) << begin;
  EXPECT_TRUE(read(start + "\r\n").refusal()) << "HTTP/1.1 needs a host";
  EXPECT_TRUE(read(start + std::string(HeadReader::most_bytes, 'x')).refusal());
  EXPECT_FALSE(read(start + "Host: a").finished());
}

// cpp-httplib decodes it again.
TEST(RequestHead, KeepsPercentSigns) {
  EXPECT_NE(read(start + "Host: a\r\nX: a%20b\r\n\r\n").text().find("x: a%2520b\r\n"), std::string::npos);
}

struct Decoded {
  std::string text;
  ssize_t last = 0;  // 0: complete
  int status = 0;
  std::string rest;
};

Decoded decode(const std::string& bytes, size_t max_bytes = 100, size_t piece = 7) {
  size_t at = 0;
  ChunkedBody body(max_bytes);
  const auto source = [&](char* data, size_t size) -> ssize_t {
    const size_t count = std::min({size, bytes.size() - at, piece});
    std::copy_n(bytes.data() + at, count, data);
    at += count;
    return static_cast<ssize_t>(count);
  };
  Decoded decoded;
  std::string buffer(13, ' ');
  while ((decoded.last = body.read(source, buffer.data(), buffer.size())) > 0)
    decoded.text.append(buffer, 0, static_cast<size_t>(decoded.last));
  if (body.refusal()) decoded.status = body.refusal()->status;
  decoded.rest = bytes.substr(at);
  return decoded;
}

TEST(ChunkedBody, DecodesChunksExtensionsAndTrailers) {
  // The example of RFC 9112 with an extension and a trailer, and the begin of another request.
  const Decoded decoded =
      decode("4\r\nWiki\r\n7;a=\"b\"\r\npedia i\r\nB \t;c\r\nn \r\nchunks.\r\n0\r\nX: y\r\n\r\nGET");
  EXPECT_EQ(decoded.last, 0);
  EXPECT_EQ(decoded.text, "Wikipedia in \r\nchunks.");
  EXPECT_EQ(decoded.rest, "GET");
  EXPECT_EQ(decode("0\r\n\r\n").last, 0);
  EXPECT_EQ(decode("000a\r\n0123456789\r\n00\r\n\r\n").text, "0123456789");
}

TEST(ChunkedBody, RefusesOtherSizesAndEnds) {
  for (const char* bytes :
       {"-1\r\n", "+4\r\nWiki\r\n0\r\n\r\n", "0x4\r\nWiki\r\n", " 4\r\nWiki\r\n", "4 \r\nWiki\r\n", "\r\n",
        "g\r\n", "4\nWiki\r\n", "4\r\nWikiX\r\n0\r\n\r\n", "4\r\nWiki0\r\n\r\n", "4\r\nWiki\n0\r\n\r\n",
        "10000000000000000\r\n", "1,1\r\nx\r\n", "4\r\rx\r\n", "4;\x01\r\nWiki\r\n0\r\n\r\n",
        "0\r\nnonsense\r\n\r\n", "0\r\nA: b\r\n c\r\n\r\n", "0\r\nA : b\r\n\r\n", "0\r\nA: \x02\r\n\r\n"}) {
    const Decoded decoded = decode(bytes);
    EXPECT_EQ(decoded.last, -1) << bytes;
    EXPECT_EQ(decoded.status, 400) << bytes;
  }
  EXPECT_EQ(decode("0\r\n" + std::string(20'000, 'x') + "\r\n\r\n").status, 400);
  for (const char* broken : {"", "4", "4\r\nWi", "4\r\nWiki\r\n", "4\r\nWiki\r\n0\r\n"}) {
    EXPECT_EQ(decode(broken).last, -1) << broken;
    EXPECT_EQ(decode(broken).status, 0) << broken;
  }
}

TEST(ChunkedBody, IsLimited) {
  EXPECT_EQ(decode("5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n", 10).text, "0123456789");
  const Decoded decoded = decode("5\r\n01234\r\n6\r\n56789a\r\n0\r\n\r\n", 10);
  EXPECT_EQ(decoded.last, -1);
  EXPECT_EQ(decoded.status, 413);
  EXPECT_EQ(decode("ffffffffffffffff\r\n", 10).status, 413);
}

}  // namespace
}  // namespace teratron
