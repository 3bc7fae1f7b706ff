#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <set>

#include "tests/backends/conformance/backend_conformance.h"
#include "tests/support/expect_error.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/ranks.h"
#include "tests/support/wait_until.h"
#include "tutti/backends/gloo/worker.h"
#include "tutti/base/descriptor.h"
#include "tutti/core/tutti.h"

namespace tutti::test {
namespace {

BackendMaker gloo_maker(const std::string& name, const std::string& interface,
                        const std::string& algorithms) {
  return {name, [=](int size) {
            return make_backends(find_backend("gloo"), size, [=](Context& context) {
              context.network_interface = interface;
              context.algorithms = algorithms;
              context.executor.segment_bytes = kTestSegmentBytes;
            });
          }};
}

const auto name_of = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(Gloo, BackendConformance,
                         testing::Values(gloo_maker("Default", "", ""),
                                         gloo_maker("Ring", "127.0.0.1", "allreduce:0-inf=ring"),
                                         gloo_maker("HalvingDoubling", "lo",
                                                    "allreduce:0-inf=halving_doubling")),
                         name_of);

// Runs one allreduce over all of `ends`.
void run_allreduce(Backends& ends, CaseMaker& maker, uint64_t tag, DataType dtype, ReduceOp op,
                   int64_t count, bool in_place = false) {
  SCOPED_TRACE(testing::Message() << ends.size() << " ranks, count " << count);
  auto test = maker.make(CollectiveKind::allreduce, dtype, op, count);
  if (in_place) test.outputs = test.inputs;
  std::vector<OperationPtr> operations;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    auto collective = test.of(static_cast<int>(rank));
    if (in_place) collective.input = collective.output;
    operations.push_back(ends[rank]->start(collective, launch_of(tag)));
  }
  const auto deadline = Deadline::after(20);
  for (auto& operation : operations) {
    auto state = OperationState::pending;
    while (state == OperationState::pending && !deadline.passed()) {
      for (auto& end : ends) end->progress();
      state = operation->advance();
    }
    ASSERT_EQ(state, OperationState::done);
  }
  test.check();
}

TEST(Gloo, AllreducesOfManySizesOneAfterAnother) {
  auto ends = make_backends(find_backend("gloo"), 3);
  uint64_t tag = 0;
  for (int round = 0; round < 3; ++round)
    for (const auto dtype : {DataType::u8, DataType::f32, DataType::f64, DataType::bf16})
      for (int64_t count = 1; count <= 4096; count = count * 2 + round)
        for (const auto op : {ReduceOp::sum, ReduceOp::max}) {
          CaseMaker maker(3, ++tag);
          run_allreduce(ends, maker, tag, dtype, op, count);
          ASSERT_FALSE(testing::Test::HasFailure());
        }
}

// Covers several pieces in each step, and numbers of ranks that are not a power of two.
TEST(Gloo, HalvingAndDoublingInPieces) {
  for (const int size : {2, 3, 4, 6}) {
    auto ends = make_backends(find_backend("gloo"), size, [](Context& context) {
      context.algorithms = "allreduce:0-inf=halving_doubling";
    });
    uint64_t tag = 0;
    for (const int64_t count : {1, 5, 300'001, 1'000'003})
      for (const bool in_place : {false, true}) {
        CaseMaker maker(size, ++tag);
        run_allreduce(ends, maker, tag, DataType::f32, ReduceOp::average, count, in_place);
        ASSERT_FALSE(testing::Test::HasFailure());
      }
  }
}

// Gloo cannot cancel a call. Its connections and waits can be ended under it instead, which the
// engine does on every rank that learns of a loss.
TEST(Gloo, ACallInTheMiddleEndsAtOnceOnAllRanks) {
  constexpr int64_t kCount = 64 << 20;
  const int64_t counts[] = {kCount};
  for (int round = 0; round < 3; ++round) {
    auto ends = make_backends(find_backend("gloo"), 2);
    std::vector<std::vector<std::byte>> data(2, std::vector<std::byte>(kCount, std::byte{1}));
    std::vector<OperationPtr> operations;
    for (size_t rank = 0; rank < 2; ++rank) {
      const Collective collective{CollectiveKind::allreduce,
                                  DataType::u8,
                                  ReduceOp::sum,
                                  0,
                                  data[rank].data(),
                                  data[rank].data(),
                                  counts,
                                  {},
                                  {}};
      operations.push_back(ends[rank]->start(collective, launch_of(1)));
    }
    const auto drive = [&] {
      for (size_t rank = 0; rank < 2; ++rank) ends[rank]->progress();
    };
    for (int i = 0; i < 5 + 5 * round; ++i) {
      drive();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_EQ(operations[0]->advance(), OperationState::pending);
    const auto begin = Clock::now();
    for (auto& end : ends)
      std::thread([&] { end->abort(Error(ErrorCode::closed, "enough")); }).join();
    for (auto& operation : operations) {
      auto state = OperationState::pending;
      while (state == OperationState::pending && Clock::now() - begin < std::chrono::seconds(10)) {
        drive();
        state = operation->advance();
      }
      EXPECT_EQ(state, OperationState::failed);
      EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(1000));
    }
  }
}

// The worker reports a failed call before it marks the call as over. The backend uses that report
// to end everything that waits.
TEST(Gloo, TheWorkerTellsOfACallThatFails) {
  Worker::Job good, bad;
  std::vector<std::string> heard;
  std::atomic<int> over{0};
  Worker worker([&] { ++over; },
                [&] {
                  heard.push_back(bad.is_over ? "late" : good.is_over ? "bad" : "good");
                });
  good.run = [] {};
  bad.run = [] { throw std::runtime_error("the connection is gone"); };
  worker.post(good);
  worker.post(bad);
  ASSERT_TRUE(test::wait_until([&] { return over >= 2; }, 20));
  EXPECT_EQ(good.failure, "");
  EXPECT_EQ(bad.failure, "the connection is gone");
  EXPECT_THAT(heard, testing::ElementsAre("bad"));
}

// Beside a backend with its own threads, a blocking call sleeps between two polls. When rank 0's
// own thread finds the fault, it must poll the call after that same step, because nothing wakes the
// thread later.
TEST(Gloo, ABlockingCallBesideItEndsByTheFaultThatItsOwnThreadFinds) {
  const auto body = [](Communicator& comm) {
    std::vector<float> values(10, 1.0f);
    comm.allreduce_blocking("together", values);
    expect_error(ErrorCode::mismatch, "rank 1 has joined (is out of data)", [&] {
      if (comm.rank() == 1)
        comm.join().wait();
      else
        comm.allreduce_blocking("alone", values);
    });
  };
  run_threads(2, body, [](Options& options) {
    options.algorithms = "broadcast:0-inf=gloo/auto";
    options.network_interface = "127.0.0.1";
  });
}

TEST(Gloo, RankOrderGoesElsewhereAndSaysSoOnce) {
  std::mutex mutex;
  std::vector<std::string> lines;
  auto ends = make_backends(find_backend("gloo"), 3, [&](Context& context) {
    context.determinism = Determinism::rank_order;
    context.log = [&](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex);
      lines.emplace_back(line);
    };
  });
  const int64_t counts[] = {1000};
  Collective collective;
  collective.kind = CollectiveKind::allreduce;
  collective.send_counts = counts;
  EXPECT_THAT(std::string(ends[1]->algorithm(collective)),
              testing::Not(testing::HasSubstr("gloo")));
  collective.kind = CollectiveKind::broadcast;
  EXPECT_EQ(ends[1]->algorithm(collective), "gloo");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], testing::HasSubstr("Gloo promises no rank order"));
}

TEST(Gloo, AnAlgorithmThatItDoesNotHaveIsRefused) {
  for (const auto& [scores, why] :
       {std::pair("allreduce:0-inf=two_shot",
                  "TUTTI_ALGORITHMS=allreduce:0-inf=two_shot: Gloo has no two_shot for allreduce "
                  "(expected auto, ring or halving_doubling)"),
        std::pair("broadcast:0-1k=chain",
                  "TUTTI_ALGORITHMS=broadcast:0-1k=chain: Gloo has no chain for broadcast "
                  "(expected auto)")}) {
    auto context = thread_context(0, 1, make_memory_store());
    context.algorithms = scores;
    EXPECT_STREQ(error_of([&] { find_backend("gloo").connect(context); }).what(), why);
  }
}

// Gloo's own connect() waits for ever, whatever its timeout is.
TEST(Gloo, WhoNeverAnswersItsConnectionIsNotAwaitedBeyondTheDeadline) {
  const auto store = make_memory_store();
  const auto begin = Clock::now();
  run_ranks(2, [&](int rank) {
    auto context = thread_context(rank, 2, store);
    context.network_interface = "127.0.0.1";
    if (rank == 0) {
      context.deadline = Deadline::after(1);
      expect_error(ErrorCode::timeout, "Gloo's connections",
                   [&] { find_backend("gloo").connect(context); });
      return;
    }
    // This rank opens its channels, publishes an address and then falls silent.
    const auto channels = find_backend("hierarchical").open(context, others(rank, 2));
    auto theirs = store->get("gloo/0", Deadline::after(10));
    // An empty length, the address's length, the address.
    ASSERT_GT(theirs.size(), 2 + sizeof(sockaddr_in));
    // The rank with the lower address awaits the other, so rank 1 claims the higher one.
    std::memset(theirs.data() + 2 + offsetof(sockaddr_in, sin_port), 0xff, sizeof(in_port_t));
    store->set("gloo/1", theirs.substr(1) + std::string(1, '\0'));
    std::this_thread::sleep_for(std::chrono::milliseconds(1600));
  });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(6));
}

TEST(Gloo, AnInterfaceThatOneRankLacksIsOneErrorOnAll) {
  const auto heard =
      connect_refusals(find_backend("gloo"), 2, ErrorCode::unavailable, [](Context& context) {
        if (context.rank == 1) context.network_interface = "eth99";
      });
  for (const auto& text : heard)
    EXPECT_THAT(
        text,
        testing::AllOf(testing::HasSubstr("rank 1: TUTTI_INTERFACE=eth99 names no interface"),
                       testing::HasSubstr("lo 127.0.0.1"), testing::HasSubstr("TUTTI_INTERFACE")));
}

Descriptor tcp_socket() { return Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

sockaddr_in on_loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// The kernel may give one local port to several connections with different targets. A connection of
// Gloo may therefore have the port of the store's connection. In this network the program's
// connections already use all of the few even ports, which the kernel prefers for outgoing
// connections. Gloo's connections then get one of these ports.
TEST(Gloo, EndsNoConnectionThatHasThePortOfOneOfItsOwn) {
  if (const auto why = NetworkNamespaces::unavailable(); !why.empty()) GTEST_SKIP() << why;
  constexpr uint16_t kPort = 30'000;
  constexpr int kFirst = 40'000, kPorts = 64;
  NetworkNamespaces(1).within(0, [&] {
    std::ofstream("/proc/sys/net/ipv4/ip_local_port_range")
        << kFirst << ' ' << kFirst + kPorts - 1 << std::endl;
    const auto server = tcp_socket();
    const auto place = on_loopback(kPort);
    const auto* address = reinterpret_cast<const sockaddr*>(&place);
    ASSERT_EQ(::bind(server.get(), address, sizeof place), 0);
    ASSERT_EQ(::listen(server.get(), kPorts), 0);
    std::vector<Descriptor> callers, called;
    std::set<int> ports;
    while (callers.size() < kPorts / 2) {
      callers.push_back(tcp_socket());
      ASSERT_EQ(::connect(callers.back().get(), address, sizeof place), 0);
      sockaddr_in own{};
      socklen_t length = sizeof own;
      called.emplace_back(::accept4(server.get(), reinterpret_cast<sockaddr*>(&own), &length, 0));
      ports.insert(ntohs(own.sin_port));
    }
    for (const int port : ports) EXPECT_EQ(port % 2, 0);
    auto ends = make_backends(find_backend("gloo"), 3,
                              [](Context& context) { context.network_interface = "127.0.0.1"; });
    for (auto& end : ends) end->abort(Error(ErrorCode::peer_lost, "test"));
    ends.clear();
    for (size_t i = 0; i < callers.size(); ++i) {
      char byte = 'a';
      EXPECT_EQ(::send(callers[i].get(), &byte, 1, MSG_NOSIGNAL), 1);
      EXPECT_EQ(::recv(called[i].get(), &byte, 1, 0), 1);
    }
  });
}

}  // namespace
}  // namespace tutti::test
