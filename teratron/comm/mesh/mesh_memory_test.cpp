// The memory that groups take on a rank of a large job: mesh, communicators of processes, and their backend.
#include <chrono>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <malloc.h>

#include "teratron/comm/host/process_world.h"
#include "teratron/comm/mesh/mesh.h"

namespace teratron {
namespace {

/// For a job of which only this rank exists.
class LonelyTransport final : public Transport {
 public:
  LonelyTransport(int64_t rank, int64_t size) : rank_(rank), size_(size) {}
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  void start(TransportReceiver& /*receiver*/) override {}
  void send(int64_t /*to*/, ByteSpan /*head*/, ByteSpan /*body*/) override {}
  void close(bool /*failed*/) override {}

 private:
  int64_t rank_, size_;
};

size_t bytes_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

struct Made {
  std::shared_ptr<ProcessBackend> backend;
  std::unique_ptr<World> world;
  Mesh mesh;
};

Made make_groups(const MeshOptions& options, int64_t ranks) {
  Made made;
  made.backend = std::make_shared<ProcessBackend>(std::make_unique<LonelyTransport>(ranks / 2 + 1, ranks),
                                                  std::chrono::seconds(1));
  made.world = process_world(made.backend);
  made.mesh = Mesh(options, *made.world);
  made.backend->finish();
  return made;
}

double bytes_per_rank(const MeshOptions& options) {
  const auto bytes_of = [&](int64_t ranks) {
    const size_t before = bytes_in_use();
    const Made made = make_groups(options, ranks);
    EXPECT_EQ(made.mesh.world().size, ranks);
    return static_cast<double>(bytes_in_use()) - static_cast<double>(before);
  };
  constexpr int64_t few = 1024, many = 16384;
  bytes_of(few);  // what is allocated once
  return (bytes_of(many) - bytes_of(few)) / static_cast<double>(many - few);
}

TEST(MeshMemory, DoesNotGrowWithTheNumberOfRanks) {
  const std::vector<MeshOptions> layouts = {
      {},
      {.tp = 8, .pp = 16},
      {.tp = 8, .pp = 8, .cp = 4, .ep = 8},
      {.tp = 2, .pp = 2, .cp = 2, .ep = 2, .etp = 1},
  };
  for (const MeshOptions& layout : layouts) {
    const double bytes = bytes_per_rank(layout);
    EXPECT_LT(bytes, 1.0) << layout.tp << " " << layout.pp << " " << layout.ep;
    RecordProperty(fmt::format("tp {} pp {} ep {}", layout.tp, layout.pp, layout.ep),
                   fmt::format("{}", bytes));
  }
}

}  // namespace
}  // namespace teratron
