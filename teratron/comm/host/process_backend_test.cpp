#include "teratron/comm/host/process_backend.h"

#include <array>
#include <cstring>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/base/hash.h"
#include "teratron/comm/host/process_group.h"
#include "teratron/comm/host/process_world.h"
#include "teratron/comm/transport/socket_transport.h"
#include "teratron/testing/sockets.h"
#include "teratron/testing/worlds.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;
using namespace std::string_literals;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ProcessBackend, NamesMismatchedFingerprints) {
  const auto operations = fault_over_sockets(3, [](World& world, Communicator& group) {
    sum(group, at::ones({2}));
    if (world.rank() == 1) group.barrier();
    sum(group, at::ones({4, 2}));
  });
  // Rank 0 hears of all ranks, rank 1 in the barrier only of rank 0.
  EXPECT_TRUE(operations ==
                  "the ranks of group [0 1 2] differ at their collective 2: ranks 0, 2: all_reduce(sum) "
                  "fp32 [4, 2]; rank 1: barrier" ||
              operations ==
                  "the ranks of group [0 1 2] differ at their collective 2: rank 0: all_reduce(sum) fp32 "
                  "[4, 2]; rank 1: barrier")
      << operations;
  const auto shapes = fault_over_sockets(
      2, [](World& world, Communicator& group) { sum(group, at::ones({world.rank() + 1})); });
  EXPECT_TRUE(contains(shapes, "rank 0: all_reduce(sum) fp32 [1]; rank 1: all_reduce(sum) fp32 [2]"))
      << shapes;
  const auto roots = fault_over_sockets(
      2, [](World& world, Communicator& group) { group.broadcast(at::ones({3}), world.rank()); });
  EXPECT_TRUE(contains(roots, "rank 0: broadcast(root 0) fp32 [3]; rank 1: broadcast(root 1)")) << roots;
  const auto messages = fault_over_sockets(2, [](World& world, Communicator& group) {
    if (world.rank() == 0) group.batch_isend_irecv({{at::ones({4}), 1, true}});
    if (world.rank() == 1) group.batch_isend_irecv({{at::ones({2, 2}), 0, false}});
    group.barrier();
  });
  EXPECT_EQ(messages, "rank 0 sent message fp32 [4], but rank 1 receives message fp32 [2, 2]");
}

/// Like ranks on GPUs, which do not wait where they differ: the rank that continued may query first.
TEST(ProcessBackend, NamesTheFirstOfSeveralMismatches) {
  std::vector<std::unique_ptr<Transport>> transports = connected_transports(2);
  ProcessBackend first(std::move(transports[0]), 1min), second(std::move(transports[1]), 1min);
  const auto one = first.group({0, 1}), other = second.group({0, 1});
  const auto sum_of = [](int64_t count) { return CollectiveFingerprint{"all_reduce(sum)", "fp32", {count}}; };
  for (int64_t i = 0; i < 2000; ++i) {  // more than the recorder keeps
    one->record(sum_of(i));
    other->record(sum_of(i));
  }
  EXPECT_EQ(one->diagnose_timeout("the last", 2000),
            "the last timed out after 60 s: all ranks have entered it, so a device or "
            "the network is stuck");
  one->record(sum_of(7));
  for (const int64_t count : {8, 7, 9}) other->record(sum_of(count));
  const std::string expected =
      "the ranks of group [0 1] differ at their collective 2001: rank 0: all_reduce(sum) fp32 [7]; rank 1: "
      "all_reduce(sum) fp32 [8]";
  EXPECT_EQ(one->diagnose_timeout("", 2001), expected);
  EXPECT_EQ(other->diagnose_timeout("", 2003), expected);
  EXPECT_EQ(other->diagnose_timeout("a message", std::nullopt), expected);
  first.finish();
  second.finish();
}

/// Like a rank whose GPU waits in one group while the other's host waits for it in another.
TEST(ProcessBackend, NamesAMismatchInAnotherGroup) {
  std::vector<std::unique_ptr<Transport>> transports = connected_transports(2);
  ProcessBackend first(std::move(transports[0]), 200ms), second(std::move(transports[1]), 200ms);
  const auto one = first.group({0, 1}), other = second.group({0, 1});
  const auto one_host = first.group({0, 1}), other_host = second.group({0, 1});
  one->record({"all_reduce(sum)", "fp32", {4}});
  other->record({"all_reduce(sum)", "fp32", {5}});
  const std::vector<ByteSpan> nothing(2);
  try {
    other_host->all_to_all({.operation = "barrier"}, nothing);
    ADD_FAILURE() << "no fault";
  } catch (const Fault& fault) {
    EXPECT_STREQ(
        fault.what(),
        "the ranks of group [0 1] differ at their collective 1: rank 0: all_reduce(sum) fp32 [4]; rank 1: "
        "all_reduce(sum) fp32 [5]");
  }
}

TEST(ProcessBackend, ATimeoutReportsTheStatusOfMissingRanks) {
  const std::string computing = fault_over_sockets(
      3,
      [](World& world, Communicator& group) {
        sum(group, at::ones({2}));
        if (world.rank() == 2) std::this_thread::sleep_for(900ms);
        sum(group, at::ones({5}));
      },
      200ms);
  EXPECT_EQ(computing,
            "all_reduce(sum) fp32 [5] (collective 2 of group [0 1 2]) timed out after 0.2 s: rank 2 is "
            "computing or stuck outside any collective (its last here was collective 1, all_reduce(sum) "
            "fp32 [2])");
  const std::string elsewhere = fault_over_sockets(
      2,
      [](World& world, Communicator& group) {
        if (world.rank() == 0) group.batch_isend_irecv({{at::ones({2}), 1, false}});
        if (world.rank() == 1) group.barrier();
      },
      300ms);
  EXPECT_TRUE(
      contains(elsewhere, "timed out after 0.3 s: rank 1 waits in barrier (collective 1 of group [0 1])") ||
      contains(elsewhere, "timed out after 0.3 s: rank 0 waits in receive message fp32 [2] from rank 1"))
      << elsewhere;
}

TEST(ProcessBackend, DoesNotWaitForARankThatHasEnded) {
  const std::string fault = fault_over_sockets(3, [](World& world, Communicator& group) {
    if (world.rank() != 1) group.barrier();
  });
  EXPECT_EQ(fault, "barrier (collective 1 of group [0 1 2]) cannot complete: rank 1 has ended");
}

TEST(ProcessBackend, ReasonAndExitCodeOfAFailureReachAllRanks) {
  std::atomic<int> notified = 0;
  const auto body = [&](World& world) {
    const auto group = world.group({0, 1, 2});
    group->barrier();
    if (world.rank() == 2)
      throw data_error({.what = "token 99 of 60", .where = "a.bin", .fix = "Tokenize it again"});
    try {
      group->barrier();
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.exit_code(), ExitCode::data);
      EXPECT_STREQ(fault.what(), "rank 2 failed: a.bin: token 99 of 60. Tokenize it again.");
      ++notified;
      EXPECT_THROW(world.group({0, 1, 2})->barrier(), Fault) << "groups made later fail too";
      throw;
    }
  };
  EXPECT_THROW(run_over_sockets(3, body), UserError);
  EXPECT_EQ(notified, 2);
}

std::string barrier(ProcessBackend& ranks) {
  std::vector<int64_t> all(ranks.size());
  for (int64_t r = 0; r < ranks.size(); ++r) all[r] = r;
  try {
    ranks.group(all)->barrier();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "no fault";
}

TEST(ProcessBackend, AnExitingRankForwardsTheReason) {
  std::vector<std::unique_ptr<Transport>> transports = connected_transports(3);
  auto first = std::make_unique<ProcessBackend>(std::move(transports[0]), 1min);
  ProcessBackend third(std::move(transports[1]), 1min);
  // Rank 2, which is only a transport, notifies rank 0 only.
  const std::string reason = "rank 2 failed: token 99 of 60";
  const Frame failure{.kind = Frame::Kind::failure,
                      .group_id = 2,
                      .sequence = static_cast<int64_t>(ExitCode::data),
                      .text = reason};
  transports[2]->send(0, encode_head(failure, 0), {});
  EXPECT_EQ(barrier(*first), reason);
  first.reset();
  EXPECT_EQ(barrier(third), reason);
  EXPECT_EQ(third.failure()->exit_code(), ExitCode::data);
}

TEST(ProcessBackend, NamesARankThatDoesNotAnswer) {
  std::vector<std::unique_ptr<Transport>> transports = connected_transports(2);
  ProcessBackend ranks(std::move(transports[0]), 200ms);
  EXPECT_EQ(barrier(ranks),
            "barrier (collective 1 of group [0 1]) timed out after 0.2 s: rank 1 does not answer: it is "
            "stopped or its node is unreachable");
}

/// Two ranks that are not neighbours in the tree connect when they need to; one of them cannot be reached.
TEST(ProcessBackend, NamesTheAddressOfARankThatItCouldNotCall) {
  std::vector<std::unique_ptr<Transport>> transports = connected_transports(4);
  ProcessBackend ranks(std::move(transports[1]), 200ms);
  const std::string fault = fault_of([&] { ranks.group({1, 3})->receive(1, {.operation = "message"}); });
  const std::string expected =
      "timed out after 0.2 s: rank 3 does not answer: it is stopped or its node is unreachable at 127.0.0.1:";
  EXPECT_TRUE(contains(fault, expected)) << fault;
}

TEST(ProcessBackend, NoticesADeathImmediately) {
  std::vector<std::unique_ptr<Transport>> transports = connected_transports(2);
  ProcessBackend ranks(std::move(transports[0]), 1min);
  const auto begin = std::chrono::steady_clock::now();
  std::thread killer([&] {
    std::this_thread::sleep_for(50ms);
    transports[1].reset();
  });
  EXPECT_EQ(barrier(ranks), "rank 1 has died: its connection was closed unexpectedly");
  killer.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  EXPECT_EQ(ranks.failure()->exit_code(), ExitCode::retryable);
}

TEST(SocketTransport, NamesRanksThatDidNotConnect) {
  FileDescriptor listener = listen_on("127.0.0.1", 0);
  const int port = port_of(listener);
  const SocketAddress own{"127.0.0.1", port};
  // Connections without the key are ignored.
  EXPECT_GE(connect_to("127.0.0.1", port_of(listener), in(5s)).get(), 0);
  try {
    connect_sockets({.size = 3, .addresses = {{0, own}, {1, own}, {2, own}}, .key = "key"},
                    std::move(listener), 300ms);
    FAIL() << "no fault";
  } catch (const Fault& fault) {
    EXPECT_EQ(
        fault.what(),
        fmt::format("rank 0 could not connect to ranks 1, 2 within 0.3 s. They were to call 127.0.0.1:{}. "
                    "Other connections to this port were refused, from 127.0.0.1: 1 said nothing that "
                    "a rank says. On machines with several networks, TERATRON_SOCKET_IFNAME names the "
                    "interface that ranks are called at",
                    port));
  }
}

/// As behind a firewall between two machines.
TEST(SocketTransport, AParentThatDropsPacketsIsGivenUpInTime) {
  const SilentListener parent;
  const auto begin = std::chrono::steady_clock::now();
  const std::string fault = fault_of([&] {
    connect_sockets({.rank = 1, .size = 2, .addresses = {{0, {"127.0.0.1", parent.port()}}}, .key = "key"},
                    listen_on("127.0.0.1", 0), 300ms);
  });
  EXPECT_EQ(fault,
            fmt::format("rank 1 could not connect to rank 0 at 127.0.0.1:{} within 0.3 s. It calls from "
                        "127.0.0.1. On machines with several networks, TERATRON_SOCKET_IFNAME names the "
                        "interface that ranks are called at",
                        parent.port()));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s) << "the kernel alone would try for two minutes";
}

TEST(SocketTransport, NamesAPortInUse) {
  const FileDescriptor first = listen_on("127.0.0.1", 0);
  const std::string place = fmt::format("127.0.0.1:{}", port_of(first));
  try {
    listen_on("127.0.0.1", port_of(first));
    FAIL() << "no fault";
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.exit_code(), ExitCode::retryable);
    EXPECT_TRUE(contains(fault.what(), "cannot listen on " + place + ": Address already in use"))
        << fault.what();
  }
  EXPECT_THROW(listen_on("not an address", 0), Fault);
}

/// What a stranger, or a rank with damaged memory, may send.
std::string fault_of_head(uint32_t kind, uint64_t group, int64_t sequence, std::array<uint64_t, 2> sizes) {
  const auto head =
      encode_head({.kind = static_cast<Frame::Kind>(kind), .group_id = group, .sequence = sequence}, 0);
  std::vector<std::byte> bytes = head;
  std::memcpy(bytes.data() + bytes.size() - sizeof(sizes), sizes.data(), sizeof(sizes));
  FrameReader reader;
  try {
    reader.feed(bytes, [](const Frame&) {});
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "no fault";
}

TEST(FrameReader, ChecksEveryFieldBeforeItAllocates) {
  const auto failure = static_cast<uint32_t>(Frame::Kind::failure);
  const auto collective = static_cast<uint32_t>(Frame::Kind::collective);
  const auto hello = static_cast<uint32_t>(Frame::Kind::hello);
  const uint64_t huge = uint64_t{1} << 62;
  EXPECT_EQ(fault_of_head(failure, 1, 5, {0, 0}), "no fault");
  EXPECT_TRUE(contains(fault_of_head(failure, 1, 0, {0, 0}), "a failure with exit code 0"));
  EXPECT_TRUE(contains(fault_of_head(failure, 1, 256, {0, 0}), "a failure with exit code 256"));
  EXPECT_TRUE(contains(fault_of_head(failure, 1, (int64_t{1} << 32) + 5, {0, 0}), "exit code 4294967301"));
  EXPECT_TRUE(contains(fault_of_head(collective, 1, 1, {0, huge}), "4611686018427387904 bytes"));
  EXPECT_TRUE(contains(fault_of_head(collective, 1, 1, {huge, 0}), "a text of 4611686018427387904 bytes"));
  EXPECT_TRUE(contains(fault_of_head(collective, 1, -1, {0, 0}), "number -1"));
  EXPECT_TRUE(contains(fault_of_head(hello, 0, 0, {0, 1}), "1 bytes"));
  EXPECT_TRUE(contains(fault_of_head(7, 0, 0, {0, 0}), "kind 7"));
}

TEST(FrameReader, EscapesControlCharacters) {
  const Frame frame{.kind = Frame::Kind::hello, .text = "pid 1\x1b[2J\nof \xc2\x9b a host"};
  FrameReader reader;
  std::string text;
  reader.feed(encode_head(frame, 0), [&](const Frame& read) { text = read.text; });
  EXPECT_EQ(text, "pid 1\\x1b[2J\nof \\xc2\\x9b a host");
}

/// Each is the message of a rank that a stranger replaced, or whose memory is damaged.
TEST(ProcessBackend, AMalformedMessageFailsTheJobAndNamesItsSender) {
  const auto fault_after = [](const Frame& frame, std::string_view body) {
    std::vector<std::unique_ptr<Transport>> transports = connected_transports(2);
    ProcessBackend ranks(std::move(transports[0]), 10s);
    transports[1]->send(0, encode_head(frame, body.size()), std::as_bytes(std::span(body)));
    const std::string fault = barrier(ranks);
    EXPECT_EQ(ranks.failure()->exit_code(), ExitCode::retryable);
    return fault;
  };
  EXPECT_EQ(
      fault_after({.kind = Frame::Kind::failure, .group_id = 1, .sequence = 0, .text = "done"}, ""),
      "rank 1: malformed message from another rank (a failure with exit code 0): is it the same version "
      "of the program?");
  EXPECT_EQ(fault_after({.kind = Frame::Kind::failure, .group_id = 7, .sequence = 5}, ""),
            "rank 1: malformed message: failure of rank 7 of 2");
}

TEST(ProcessBackend, APartOfTheWrongSizeIsNotCopied) {
  std::vector<std::unique_ptr<Transport>> transports = connected_transports(2);
  const auto ranks = std::make_shared<ProcessBackend>(std::move(transports[0]), 10s);
  const std::unique_ptr<World> world = process_world(ranks);
  const auto group = world->group({0, 1});
  const uint64_t id = hash_text("0 group [0 1]");
  const Frame frame{
      .kind = Frame::Kind::collective, .group_id = id, .sequence = 1, .text = "all_reduce(sum) fp32 [4]"};
  const std::string body(400, 'x');
  transports[1]->send(0, encode_head(frame, body.size()), std::as_bytes(std::span(body)));
  EXPECT_THROW(sum(*group, at::ones({4})), Fault);
  EXPECT_EQ(ranks->failure()->what(), "malformed message: rank 1 of the group sent 400 bytes instead of 16"s);
}

TEST(FrameReader, ReassemblesFramesAtAnySplit) {
  std::vector<std::byte> stream;
  const std::vector<std::string> texts = {"", "call", ""}, bodies = {"", "a body", std::string(1000, 'x')};
  for (size_t i = 0; i < texts.size(); ++i) {
    const Frame frame{
        .kind = Frame::Kind::collective, .group_id = 7, .sequence = int64_t(i), .text = texts[i]};
    const auto head = encode_head(frame, bodies[i].size());
    stream.insert(stream.end(), head.begin(), head.end());
    const auto body = std::as_bytes(std::span(bodies[i]));
    stream.insert(stream.end(), body.begin(), body.end());
  }
  for (const size_t step : {1, 2, 3, 7, 39, 40, 41, 64, 5000}) {
    FrameReader reader;
    size_t count = 0;
    for (size_t at = 0; at < stream.size(); at += step) {
      reader.feed(ByteSpan(stream).subspan(at, std::min(step, stream.size() - at)), [&](const Frame& frame) {
        EXPECT_EQ(frame.group_id, 7U);
        EXPECT_EQ(frame.sequence, int64_t(count));
        EXPECT_EQ(frame.text, texts[count]);
        EXPECT_EQ(std::string(reinterpret_cast<const char*>(frame.body.bytes().data()), frame.body.size()),
                  bodies[count]);
        ++count;
      });
    }
    EXPECT_EQ(count, texts.size()) << step;
  }
  FrameReader reader;
  const std::vector<std::byte> noise(100, std::byte{'z'});
  EXPECT_THROW(reader.feed(noise, [](const Frame&) {}), Fault);
}

}  // namespace
}  // namespace teratron
