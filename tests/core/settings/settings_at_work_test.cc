// The effects of settings in a running job. settings_test checks that they are read.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/wait_until.h"
#include "tutti/backends/store.h"
#include "tutti/base/text.h"
#include "tutti/core/communicator.h"
#include "tutti/core/settings/option_table.h"

namespace tutti {
namespace {

using test::run_threads;

// --- settings that must be the same on all ranks -----------------------------------------------

struct Setting {
  std::string variable, zero, one;  // as the error shows them
  void (*set)(Options&);            // sets the value of rank 1, which is not rank 0's default
};

const Setting kSettings[] = {
    {"TUTTI_BACKEND", "auto", "memory", [](Options& options) { options.backend = "memory"; }},
    {"TUTTI_ALGORITHMS", "", "allreduce:0-inf=ring",
     [](Options& options) { options.algorithms = "allreduce:0-inf=ring"; }},
    {"TUTTI_DETERMINISM", "fastest", "rank_order",
     [](Options& options) { options.determinism = Determinism::rank_order; }},
    {"TUTTI_SEGMENT_BYTES", "1M", "4K", [](Options& options) { options.segment_bytes = 4096; }},
    {"TUTTI_FUSION_BYTES", "4M", "0", [](Options& options) { options.fusion_bytes = 0; }},
    {"TUTTI_PARTITION_BYTES", "16M", "8K",
     [](Options& options) { options.partition_bytes = 8192; }},
    {"TUTTI_CACHE_CAPACITY", "4096", "7", [](Options& options) { options.cache_capacity = 7; }},
    {"TUTTI_REPLAY", "1", "0", [](Options& options) { options.replay = false; }},
    {"TUTTI_REPLAY_AFTER", "3", "5", [](Options& options) { options.replay_after = 5; }},
    {"TUTTI_PROBE", "auto", "off", [](Options& options) { options.probe = "off"; }},
    {"TUTTI_TCP_SOCKETS", "1", "2", [](Options& options) { options.tcp_sockets = 2; }},
    {"TUTTI_NCCL_CONFIG", "", "max_ctas=2",
     [](Options& options) { options.nccl_config = "max_ctas=2"; }},
    {"TUTTI_MIXED_DEVICES", "0", "1", [](Options& options) { options.mixed_devices = true; }},
};

TEST(MustAgree, EverySettingThatChangesWhatRanksSend) {
  std::set<std::string> listed, tried;
  for (const auto& word : split_text(agreed_settings({}), ' '))
    listed.insert(word.substr(0, word.find('=')));
  for (const auto& setting : kSettings) tried.insert(setting.variable);
  EXPECT_EQ(listed, tried);
  for (const auto& setting : kSettings) {
    SCOPED_TRACE(setting.variable);
    const auto tune = [&](Options& options) {
      options.connect_timeout = 30;
      if (options.rank == 1) setting.set(options);
    };
    const auto heard = test::create_refusals(2, tune, ErrorCode::mismatch);
    for (const auto& text : heard)
      EXPECT_EQ(text, fmt::format("rank 0 has {0}={1}, rank 1 has {0}={2}; all ranks must have "
                                  "the same setting",
                                  setting.variable, setting.zero, setting.one));
  }
}

// --- negotiation and replay ---------------------------------------------------------------------

// Runs `count` steps of a few tensors, checks the sums, and returns rank 1's statistics.
Statistics steps(int count, const test::Tune& tune) {
  Statistics result;
  run_threads(
      2,
      [&](Communicator& comm) {
        constexpr int kTensors = 8;
        const auto name = [](int t) { return std::string(500, 'n') + std::to_string(t); };
        const auto before = comm.statistics();
        for (int step = 0; step < count; ++step) {
          std::vector<std::vector<float>> tensors(
              kTensors, std::vector<float>(100, static_cast<float>(comm.rank() + step)));
          std::vector<Work> works;
          for (int t = 0; t < kTensors; ++t)
            works.push_back(comm.allreduce(name(t), tensors[static_cast<size_t>(t)]));
          for (auto& work : works) work.wait();
          for (const auto& tensor : tensors)
            ASSERT_EQ(tensor, std::vector<float>(100, static_cast<float>(step) + 0.5f));
        }
        if (comm.rank() == 0) return;
        result = comm.statistics();
        EXPECT_EQ(result.tensors - before.tensors, uint64_t(kTensors * count));
      },
      tune);
  return result;
}

TEST(AtWork, ReplayEndsTheNegotiationUnlessItIsOff) {
  const auto on = steps(60, {});
  EXPECT_GE(on.plans_locked, 1u);
  EXPECT_GT(on.replayed_buckets, 0u);
  EXPECT_LT(on.negotiation_messages, 60u);
  EXPECT_GT(on.predicted_messages, 0u);
  EXPECT_GT(on.predicted_bytes, 0u);
  const auto off = steps(60, [](Options& options) { options.replay = false; });
  EXPECT_EQ(off.plans_locked, 0u);
  EXPECT_EQ(off.replayed_buckets, 0u);
  EXPECT_EQ(off.predicted_messages, 0u);
  EXPECT_GE(off.negotiation_messages, 60u) << "each step asks";
  const auto later = steps(60, [](Options& options) { options.replay_after = 1000; });
  EXPECT_EQ(later.plans_locked, 0u);
  EXPECT_GE(later.negotiation_messages, 60u);
}

// 8 names of 500 bytes are requested 40 times. They are sent in full if nothing is cached,
// otherwise once.
TEST(AtWork, TensorsThatAreKnownByNumberAreNotSpelledOutAgain) {
  const auto bytes = [](int64_t capacity) {
    return steps(40,
                 [=](Options& options) {
                   options.replay = false;
                   options.cache_capacity = capacity;
                 })
        .control_bytes;
  };
  EXPECT_GE(bytes(0), 8u * 40 * 500);
  EXPECT_LT(bytes(4096), 8u * 10 * 500);
  EXPECT_GT(bytes(4), 8u * 10 * 500) << "fewer places than names";
}

// --- buckets and pieces -------------------------------------------------------------------------

TEST(AtWork, FusionAndPartitionCountBuckets) {
  const auto buckets = [](int tensors, int64_t count, const test::Tune& tune) {
    std::atomic<uint64_t> result{0};
    run_threads(
        2,
        [&](Communicator& comm) {
          const auto before = comm.statistics();
          std::vector<std::vector<float>> values(static_cast<size_t>(tensors));
          std::vector<NamedTensor> group;
          for (auto& one : values) {
            one.assign(static_cast<size_t>(count), static_cast<float>(comm.rank()));
            group.push_back({std::to_string(group.size()), one});
          }
          // A group is ready as a whole, so its members can be fused.
          comm.grouped_allreduce("group", group, {.op = ReduceOp::sum}).wait();
          for (const auto& one : values) ASSERT_EQ(std::count(one.begin(), one.end(), 1.0f), count);
          const auto after = comm.statistics();
          ASSERT_EQ(after.tensors - before.tensors, static_cast<uint64_t>(tensors));
          if (comm.rank() == 0) result = after.buckets - before.buckets;
        },
        tune);
    return result.load();
  };
  EXPECT_EQ(buckets(10, 100, {}), 1u);
  EXPECT_EQ(buckets(10, 100, [](Options& options) { options.fusion_bytes = 0; }), 10u);
  EXPECT_EQ(buckets(1, 10'000, {}), 1u);
  EXPECT_EQ(buckets(1, 10'000, [](Options& options) { options.partition_bytes = 8'000; }), 5u);
}

// Smaller segments send the same bytes in more messages.
TEST(AtWork, SegmentsAreMessagesOfTheirOwn) {
  const auto sent = [](int64_t segment_bytes) {
    Statistics result;
    run_threads(
        2,
        [&](Communicator& comm) {
          std::vector<float> values(1 << 15, static_cast<float>(comm.rank()));
          comm.allreduce("x", values, ReduceOp::sum).wait();
          ASSERT_EQ(std::count(values.begin(), values.end(), 1.0f), 1 << 15);
          comm.barrier("end").wait();
          if (comm.rank() == 0) result = comm.statistics();
        },
        [=](Options& options) {
          options.backend = "tcp";
          options.segment_bytes = segment_bytes;
          options.algorithms = "allreduce:0-inf=ring";
        });
    return result;
  };
  const auto large = sent(1 << 20), small = sent(4096);
  EXPECT_GE(small.data_messages, large.data_messages + 20);
  EXPECT_EQ(small.data_bytes, large.data_bytes);
  EXPECT_GE(large.data_bytes, 1u << 17);
  ASSERT_EQ(large.bytes_to_peer.size(), 2u);
  EXPECT_EQ(large.bytes_to_peer[0], 0u);
  EXPECT_GE(large.bytes_to_peer[1], large.data_bytes);
}

// --- sockets, jobs, hosts -----------------------------------------------------------------------

int open_sockets() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry.path(), gone).string().starts_with("socket:");
  }
  return count;
}

TEST(AtWork, AsManyConnectionsAsAskedFor) {
  test::run_processes(
      2,
      [](Communicator& outer) {
        const auto opened_for = [&](int sockets) {
          outer.barrier_blocking();
          const int before = open_sockets();
          auto options = outer.options();
          options.tcp_sockets = sockets;
          options.job = fmt::format("with {}", sockets);
          const auto comm = Communicator::create(options);
          std::vector<double> values(1 << 17);
          for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 999);
          comm->allreduce("striped", values).wait();
          for (size_t i = 0; i < values.size(); ++i)
            if (values[i] != static_cast<double>(i % 999)) return -1;
          comm->barrier_blocking();
          const int after = open_sockets();
          comm->barrier_blocking();
          return after - before;
        };
        const int one = opened_for(1);
        EXPECT_GE(one, 1);
        EXPECT_EQ(opened_for(4), one + 3);
      },
      [](Options& options) { options.backend = "tcp"; });
}

TEST(AtWork, JobsThatShareAStoreDoNotMeet) {
  const auto store = make_memory_store();
  test::on_threads(0, 6, [&](int i) {
    auto options = Options::thread_rank(i % 3, 3, store);
    options.job = i < 3 ? "first" : "second";
    const auto comm = Communicator::create(options);
    EXPECT_EQ(comm->allreduce_blocking("sum", i < 3 ? 1 : 10, ReduceOp::sum), i < 3 ? 3 : 30);
  });
}

TEST(AtWork, AHostIsWhatItIsCalled) {
  run_threads(
      3,
      [](Communicator& comm) {
        EXPECT_EQ(comm.hosts(), 2);
        EXPECT_EQ(comm.local_rank(), comm.rank() / 2);
        EXPECT_EQ(comm.local_size(), comm.rank() == 1 ? 1 : 2);
        EXPECT_EQ(comm.allreduce_blocking("ranks", comm.rank(), ReduceOp::sum), 3);
      },
      [](Options& options) {
        options.backend = "tcp";
        options.host = options.rank == 1 ? "b" : "a";
      });
}

// --- timelines and logs ------------------------------------------------------------------------

TEST(AtWork, TheTimelineOfAllRanksIsAFileAtTheEnd) {
  const test::ScratchFolder folder;
  const auto file = folder.path() + "/trace.json";
  run_threads(
      3,
      [](Communicator& comm) {
        std::vector<float> values(1000, 1.0f);
        comm.allreduce("traced gradient", values).wait();
        comm.barrier_blocking();
      },
      [&](Options& options) { options.timeline = file; });
  std::ifstream stream(file);
  ASSERT_TRUE(stream) << file;
  const auto trace = nlohmann::json::parse(stream);
  std::set<int> ranks;
  for (const auto& event : trace.is_array() ? trace : trace.at("traceEvents"))
    if (event.dump().find("traced gradient") != std::string::npos)
      ranks.insert(event.at("pid").get<int>());
  EXPECT_THAT(ranks, testing::ElementsAre(0, 1, 2));
}

// Rank 1 submits only after rank 0 has reported it as late. If warnings are off, it waits for 0.5
// s.
TEST(AtWork, TheLogIsAsLoudAsAskedFor) {
  for (const auto level : {LogLevel::warning, LogLevel::error}) {
    std::atomic<int> reports{0};
    run_threads(
        2,
        [&](Communicator& comm) {
          if (comm.rank() == 1)
            test::wait_until([&] { return reports != 0; }, level == LogLevel::warning ? 30 : 0.5);
          std::vector<float> values(10, 1.0f);
          comm.allreduce("late", values).wait();
        },
        [&](Options& options) {
          options.stall_warning = 0.1;
          options.log_level = level;
          options.log = [&](LogLevel, std::string_view line) {
            reports += line.find("late") != line.npos;
          };
        });
    EXPECT_EQ(reports > 0, level == LogLevel::warning);
  }
}

// --- priorities ---------------------------------------------------------------------------------

// All tensors of rank 0 wait for rank 1 alone, which joins when rank 0 has submitted them. Then all
// are ready at the same time. The most urgent ones must go first, although they were submitted
// last. The timeline shows when each began; a later one may end while the first still runs.
TEST(Priority, TheMostUrgentOfWhatIsReadyAtOnceGoesFirst) {
  const test::ScratchFolder folder;
  const auto file = folder.path() + "/trace.json";
  const std::vector<std::pair<std::string, int>> names = {{"a", 0}, {"b", 0}, {"c", -3},
                                                          {"d", 7}, {"e", 2}, {"f", 7}};
  run_threads(
      2,
      [&](Communicator& comm) {
        float token = 1;
        if (comm.rank() == 1) {
          comm.recv("all are known", std::span(&token, 1), 0).wait();
          comm.join().wait();
          return;
        }
        std::vector<std::vector<float>> values(names.size(), std::vector<float>(1000, 1.0f));
        std::vector<Work> works;
        for (size_t i = 0; i < names.size(); ++i)
          works.push_back(comm.allreduce(names[i].first, values[i],
                                         {.op = ReduceOp::sum, .priority = names[i].second}));
        comm.send("all are known", std::span(&token, 1), 1).wait();
        for (auto& work : works) work.wait();
        comm.join().wait();
      },
      [&](Options& options) {
        options.fusion_bytes = 0;
        options.timeline = file;
      });
  std::ifstream stream(file);
  ASSERT_TRUE(stream) << file;
  std::map<double, std::string> begun;
  for (const auto& event : nlohmann::json::parse(stream)) {
    if (event.at("ph") != "X" || event.at("pid") != 0) continue;
    for (const auto& [name, priority] : names)
      if (event.at("name").get<std::string>().find("(\"" + name + "\")") != std::string::npos)
        begun[event.at("ts").get<double>()] += name;
  }
  std::vector<std::string> order;
  for (const auto& [when, name] : begun) order.push_back(name);
  EXPECT_THAT(order, testing::ElementsAre("d", "f", "e", "a", "b", "c"));
}

}  // namespace
}  // namespace tutti
