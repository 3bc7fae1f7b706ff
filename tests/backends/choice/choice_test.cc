#include "tutti/backends/choice/choice.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/backends/conformance/backend_conformance.h"
#include "tests/backends/support/forwarding_backend.h"
#include "tests/support/ranks.h"
#include "tutti/core/tutti.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

Backends make_choice(const std::string& name, const std::string& scores, int size) {
  const auto store = make_memory_store();
  Backends backends(static_cast<size_t>(size));
  run_ranks(size, [&](int rank) {
    auto context = thread_context(rank, size, store);
    context.name = name;
    context.algorithms = scores;
    context.network_interface = "127.0.0.1";
    context.executor.segment_bytes = kTestSegmentBytes;
    backends[static_cast<size_t>(rank)] = connect_choice(context);
  });
  return backends;
}

// The scores send every operation to one of several backends, which then run beside each other.
BackendMaker choice_maker(const std::string& name, const std::string& own,
                          const std::string& scores) {
  return {name, [=](int size) { return make_choice(own, scores, size); }};
}
INSTANTIATE_TEST_SUITE_P(
    Choice, BackendConformance,
    testing::Values(choice_maker("BySize", "shm",
                                 "allreduce:100-20k=tcp/auto,20k-inf=memory/ring;"
                                 "broadcast:0-1k=tcp/auto;allgather:1k-inf=tcp/ring"),
                    choice_maker("ByKind", "tcp",
                                 "allreduce:0-inf=memory/auto;send:0-inf=shm/auto;"
                                 "recv:0-inf=shm/auto;barrier:0-inf=memory/auto")),
    [](const auto& info) { return info.param.name; });

std::string chosen(const Backend& backend, CollectiveKind kind, int64_t bytes) {
  Collective collective;
  collective.kind = kind;
  collective.dtype = DataType::u8;
  collective.send_counts = std::span(&bytes, 1);
  return backend.name_for(collective) + "/" + std::string(backend.algorithm(collective));
}

TEST(Choice, GoesByKindAndSize) {
  auto ends = make_choice(
      "tcp", "allreduce:0-32k=shm/one_shot,32k-1M=auto,1M-inf=memory/auto;broadcast:0-inf=chain",
      2);
  for (int rank = 0; rank < 2; ++rank) {
    const auto& end = ends[static_cast<size_t>(rank)];
    using enum CollectiveKind;
    EXPECT_EQ(end->capabilities().name, "tcp,shm,memory");
    EXPECT_EQ(chosen(*end, allreduce, 32767), "shm/one_shot");
    EXPECT_EQ(chosen(*end, allreduce, 32768), "tcp/two_shot");
    EXPECT_EQ(chosen(*end, allreduce, 1 << 20), "memory/two_shot");
    EXPECT_EQ(chosen(*end, broadcast, 10), "tcp/chain");
    EXPECT_EQ(chosen(*end, reduce, 10), "tcp/binomial_tree");
    EXPECT_EQ(end->transport()->route(1 - rank), "tcp");
  }
}

TEST(Choice, OfOneBackendIsThatBackend) {
  for (const auto* scores : {"", "allreduce:0-32k=one_shot", "allreduce:0-32k=shm/one_shot"}) {
    auto ends = make_choice("shm", scores, 2);
    EXPECT_EQ(ends[0]->capabilities().name, "shm") << scores;
    EXPECT_EQ(chosen(*ends[0], CollectiveKind::allreduce, 100), "shm/one_shot") << scores;
  }
}

// Scores that name only send or only recv hold for both.
TEST(Choice, BothSidesOfASendHearTheSame) {
  for (const auto* scores : {"send:0-inf=tcp/auto", "recv:0-inf=tcp/auto"}) {
    auto ends = make_choice("shm", scores, 2);
    const int64_t counts[] = {100};
    Collective collective;
    collective.dtype = DataType::u8;
    collective.send_counts = counts;
    Launch launch = launch_of(1);
    launch.queue = 0;
    launch.name = "x";
    using enum CollectiveKind;
    for (const auto kind : {send, recv, allreduce}) {
      collective.kind = kind;
      EXPECT_EQ(ends[0]->packs_itself(collective, launch), kind == allreduce)
          << scores << " " << to_string(kind);
    }
  }
}

TEST(Choice, ASendMeetsItsReceiveIfOnlyOneOfThemIsNamed) {
  for (const auto* scores : {"send:0-inf=tcp/auto", "recv:0-64=tcp/auto,64-inf=shm/auto"})
    run_threads(
        2,
        [](Communicator& comm) {
          for (const size_t count : {10u, 1000u}) {
            std::vector<float> values(count, static_cast<float>(comm.rank() + 1));
            if (comm.rank() == 0) {
              comm.send("x", values, 1).wait(Deadline::after(20));
              comm.send_blocking("y", values, 1);
            } else {
              comm.recv("x", values, 0).wait(Deadline::after(20));
              EXPECT_THAT(values, testing::Each(1.0f));
              values.assign(count, 2);
              comm.recv_blocking("y", values, 0);
              EXPECT_THAT(values, testing::Each(1.0f));
            }
          }
        },
        [&](Options& options) {
          options.backend = "memory";
          options.algorithms = scores;
          options.network_interface = "lo";
        },
        60);
}

// A backend whose split fails if another backend's key is already in the store that it gets.
class SplittingBackend final : public ForwardingBackend {
 public:
  SplittingBackend(const Context& context, std::string name)
      : ForwardingBackend(find_backend("memory").connect(context)), name_(std::move(name)) {}
  std::shared_ptr<Inheritance> split(const Context& context, int, int) override {
    EXPECT_EQ(context.store->set_once("key", name_), name_);
    return nullptr;
  }

 private:
  const std::string name_;
};

template <char kName>
std::unique_ptr<Backend> connect_splitting(const Context& context) {
  return std::make_unique<SplittingBackend>(context, std::string(1, kName));
}

TEST(Choice, EachBackendSplitsInAStoreOfItsOwn) {
  const BackendPlugin one{.name = "one", .summary = "", .connect = connect_splitting<'1'>};
  const BackendPlugin other{.name = "other", .summary = "", .connect = connect_splitting<'2'>};
  const BackendPlugin* const plugins[] = {&one, &other};
  auto context = thread_context(0, 1, make_memory_store());
  context.plugins = plugins;
  context.name = "one";
  context.algorithms = "allreduce:0-inf=other/auto";
  const auto backend = connect_choice(context);
  EXPECT_EQ(backend->capabilities().name, "one,other");
  EXPECT_NE(backend->split(context, 0, 0), nullptr);
}

// The choice counts the bytes that a rank sends, whichever backend runs the operation.
TEST(Choice, CountsTheTrafficOfAll) {
  auto ends = make_choice("shm", "allreduce:0-inf=tcp/ring", 2);
  const int64_t counts[] = {4};
  int32_t values[2][4] = {{1, 2, 3, 4}, {10, 20, 30, 40}};
  std::vector<OperationPtr> running;
  for (size_t rank = 0; rank < 2; ++rank) {
    auto* data = reinterpret_cast<std::byte*>(values[rank]);
    const Collective collective{
        CollectiveKind::allreduce, DataType::i32, ReduceOp::sum, 0, data, data, counts, {}, {}};
    running.push_back(ends[rank]->start(collective, launch_of(1)));
  }
  const auto deadline = Deadline::after(10);
  while (!running.empty() && !deadline.passed()) {
    for (auto& end : ends) end->progress();
    std::erase_if(running, [](const auto& one) { return one->advance() == OperationState::done; });
  }
  EXPECT_EQ(values[0][3], 44);
  EXPECT_EQ(ends[0]->counters().bytes_sent, 16u);
  EXPECT_EQ(ends[0]->transport()->counters().bytes_sent, 0u);
}

// --- communicators ------------------------------------------------------------------------------

TEST(Choice, ACommunicatorUsesSeveralBackendsAndTheTimelineSaysWhich) {
  const auto file = fmt::format("{}choice_timeline_{}.json", testing::TempDir(), ::getpid());
  const auto tune = [](Options& options) {
    options.algorithms = "allreduce:0-1k=shm/auto,64k-inf=tcp/ring;broadcast:0-inf=tcp/auto";
    options.fusion_bytes = 0;
  };
  const auto body = [&](Communicator& comm) {
    EXPECT_EQ(comm.backend(), "memory,shm,tcp");
    comm.start_timeline(file);
    std::vector<float> small(10), middle(1000), large(100'000);
    for (int step = 0; step < 6; ++step) {
      for (auto* values : {&small, &middle, &large})
        values->assign(values->size(), static_cast<float>(comm.rank() + step));
      auto first = comm.allreduce("small", small, ReduceOp::sum);
      auto second = comm.allreduce("large", large, ReduceOp::sum);
      comm.allreduce("middle", middle, ReduceOp::sum).wait();
      second.wait();
      first.wait();
      for (auto* values : {&small, &middle, &large})
        ASSERT_EQ(*values, std::vector<float>(values->size(), static_cast<float>(3 + 3 * step)));
      comm.allreduce_blocking("blocking", small, ReduceOp::max);
      comm.broadcast("broadcast", middle, 1).wait();
    }
    EXPECT_GT(comm.statistics().replayed_buckets, 0u);
    comm.stop_timeline();
  };
  run_threads(3, body, tune);
  std::ifstream stream(file);
  const std::string events((std::istreambuf_iterator<char>(stream)), {});
  std::filesystem::remove(file);
  for (const auto* said :
       {"40 f32 bytes by one_shot of shm", "4000 f32 bytes by one_shot of memory",
        "400000 f32 bytes by ring of tcp", "4000 f32 bytes by binomial_tree of tcp"})
    EXPECT_THAT(events, HasSubstr(said));
}

TEST(Choice, ATypoInTheScoresIsToldOnAllRanks) {
  const auto one = create_refusals(2, [](Options& options) {
    if (options.rank == 1) options.algorithms = "allreduce:0-32k=smh/one_shot";
  });
  EXPECT_THAT(one[1], testing::StartsWith("TUTTI_ALGORITHMS=allreduce:0-32k=smh/one_shot: there is "
                                          "no backend \"smh\", did you mean \"shm\"?"));
  EXPECT_EQ(one[0], "rank 1: " + one[1]);
  const auto all =
      create_refusals(2, [](Options& options) { options.algorithms = "allreduce:0-3x=ring"; });
  for (const auto& line : all) EXPECT_THAT(line, HasSubstr("\"3x\" is not a size"));
}

TEST(Choice, RanksThatChooseDifferentlyAreToldOnAllRanks) {
  const auto backends = create_refusals(
      3, [](Options& options) { options.backend = options.rank == 1 ? "shm" : "tcp"; });
  // The message names rank 1 and whichever other rank published its settings first.
  EXPECT_THAT(backends[0],
              testing::AnyOf("rank 0 has TUTTI_BACKEND=tcp, rank 1 has TUTTI_BACKEND=shm; all "
                             "ranks must have the same setting",
                             "rank 1 has TUTTI_BACKEND=shm, rank 2 has TUTTI_BACKEND=tcp; all "
                             "ranks must have the same setting"));
  for (const auto& heard : backends) EXPECT_EQ(heard, backends[0]);
  const auto scores = create_refusals(2, [](Options& options) {
    options.algorithms = options.rank == 1 ? "allreduce:0-inf=tcp/ring" : "allreduce:0-inf=ring";
  });
  EXPECT_THAT(scores[0], HasSubstr("rank 0 has TUTTI_ALGORITHMS=allreduce:0-inf=ring, rank 1 has "
                                   "TUTTI_ALGORITHMS=allreduce:0-inf=tcp/ring"));
  EXPECT_THAT(scores[1], HasSubstr("all ranks must have the same setting"));
}

TEST(Choice, AnInterfaceThatOneRankLacksIsToldOnAllRanks) {
  const auto heard = create_refusals(3, [](Options& options) {
    options.backend = "tcp";
    if (options.rank == 1) options.network_interface = "eth99";
  });
  EXPECT_THAT(heard[1], testing::StartsWith("TUTTI_INTERFACE=eth99 names no interface that is up "
                                            "and no address of this host"));
  EXPECT_EQ(heard[0], "rank 1: " + heard[1]);
  EXPECT_EQ(heard[2], heard[0]);
}

TEST(Choice, TwoLevelsNeedBackendsThatFit) {
  const auto refusal = [](const std::string& name) {
    const auto heard = create_refusals(2, [&](Options& options) { options.backend = name; });
    EXPECT_FALSE(heard[0].empty() || heard[1].empty()) << name;
    return heard[0];
  };
  EXPECT_THAT(refusal("shm+tpc"), HasSubstr("there is no backend \"tpc\", did you mean \"tcp\"?"));
  EXPECT_THAT(refusal("shm+"), HasSubstr("there is no backend \"\""));
  EXPECT_THAT(refusal("shm+tcp+tcp"), HasSubstr("needs backend \"tcp+tcp\""));
}

}  // namespace
}  // namespace tutti::test
