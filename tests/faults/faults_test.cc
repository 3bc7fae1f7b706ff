// Ranks that die or stop under tutti-run: every survivor names the rank in time and goes on.
// FAULT_RUNS sets how many runs each case makes (default 2).

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "tests/tools/run_program.h"

namespace {

constexpr int kRanks = 4;
constexpr std::string_view kSharedMemory = "/dev/shm/";

constexpr auto* kOnTwoHosts =
    "sh -c 'TUTTI_HOST=host$((TUTTI_RANK / 2)) exec \"$0\" \"$@\"' " FAULT_RANK;

int runs() {
  const char* text = std::getenv("FAULT_RUNS");
  return text == nullptr ? 2 : std::max(1, std::atoi(text));
}

struct Result {
  int code = -1;
  std::string output;
};

Result run(const std::string& command) {
  Result result;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      ::popen(("timeout -k 1 40 " + command + " 2>&1").c_str(), "r"), nullptr);
  char buffer[4096];
  for (size_t size; (size = std::fread(buffer, 1, sizeof buffer, pipe.get())) > 0;)
    result.output.append(buffer, size);
  const int status = ::pclose(pipe.release());
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

// What lies in /dev/shm and no process has mapped: jobs of other tests may have theirs there.
std::set<std::string> abandoned() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    names.insert(entry.path().filename());
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    std::ifstream maps(process.path() / "maps");
    for (std::string line; !names.empty() && std::getline(maps, line);)
      if (const auto at = line.find(kSharedMemory); at != std::string::npos)
        names.erase(line.substr(at + kSharedMemory.size()));
  }
  return names;
}

// What is there now and was not before; what is only just made gets a second to be mapped.
std::set<std::string> left_behind(const std::set<std::string>& before) {
  std::set<std::string> left;
  for (int attempt = 0; attempt < 20; ++attempt) {
    left = abandoned();
    for (const auto& name : before) left.erase(name);
    if (left.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return left;
}

class Faults : public testing::Test {
 protected:
  Faults() : stamp_(fmt::format("{}fault_stamp_{}", testing::TempDir(), ::getpid())) {}
  ~Faults() override {
    std::filesystem::remove(stamp_);
    std::filesystem::remove_all(folder_);
  }

  // Runs one job and checks what every survivor must say and what must not be left.
  void check(int victim, const std::string& how, const std::string& settings, double limit_ms,
             int expected_code, bool must_shrink) {
    SCOPED_TRACE(fmt::format("victim {} {}", victim, how));
    std::filesystem::remove(stamp_);
    const auto before = abandoned();
    const auto result = run(fmt::format("env {} {} -np {} {} {} {} {}", settings, TUTTI_RUN, kRanks,
                                        program_, victim, how, stamp_));
    SCOPED_TRACE(result.output);
    EXPECT_EQ(result.code, expected_code);
    EXPECT_EQ(result.output.find("unexpected"), std::string::npos);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      std::smatch match;
      const std::regex names(fmt::format("rank {} names (-?\\d+) after (-?\\d+) ms", rank));
      ASSERT_TRUE(std::regex_search(result.output, match, names))
          << "rank " << rank << " said nothing";
      EXPECT_EQ(match[1], std::to_string(victim));
      EXPECT_LE(std::stod(match[2]), limit_ms) << "rank " << rank;
      if (must_shrink) {
        const auto place = rank - (rank > victim ? 1 : 0);
        EXPECT_THAT(result.output, testing::HasSubstr(fmt::format(
                                       "rank {} goes on as {} of 3, sum 3", rank, place)));
      }
    }
    if (settings.find(folder_) != std::string::npos) expect_nccl(result.output, victim);
    EXPECT_THAT(left_behind(before), testing::IsEmpty());
    EXPECT_FALSE(tutti::test::is_running(fmt::format("fault_stamp_{}", ::getpid())))
        << "a process is left";
  }

  // Every survivor's data went through NCCL, which it then aborted.
  static void expect_nccl(const std::string& output, int victim) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      const std::regex went(
          fmt::format("rank {} had [1-9]\\d* operations of NCCL and aborted [1-9]", rank));
      EXPECT_TRUE(std::regex_search(output, went)) << "rank " << rank;
    }
  }

  // For a job on the tests' device and the tests' NCCL, whose ranks meet in a folder.
  std::string on_fakes(const std::string& backend) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    return fmt::format("TUTTI_BACKEND={} TUTTI_BACKEND_LIBRARY={} FAKE_NCCL_FOLDER={}", backend,
                       TUTTI_FAKE_NCCL, folder_);
  }

  const std::string stamp_;
  const std::string folder_ = stamp_ + "_nccl";
  std::string program_ = FAULT_RANK;
};

TEST_F(Faults, KilledInRendezvous) {
  for (int i = 0; i < runs(); ++i) check(i % kRanks, "kill-at rendezvous 1", "", 1000, 137, false);
}

TEST_F(Faults, KilledInNegotiation) {
  for (int i = 0; i < runs(); ++i)
    check((i + 1) % kRanks, fmt::format("kill-at negotiation {}", 1 + i % 2), "", 1000, 137, true);
}

TEST_F(Faults, KilledWhilePacking) {
  for (int i = 0; i < runs(); ++i)
    check((i + 2) % kRanks, fmt::format("kill-at pack {}", 1 + 7 * i), "", 1000, 137, true);
}

TEST_F(Faults, KilledInTransfer) {
  for (int i = 0; i < runs(); ++i)
    check((i + 3) % kRanks, fmt::format("kill-at transfer {}", 1 + 11 * i), "", 1000, 137, true);
}

TEST_F(Faults, KilledWhenIdle) {
  for (int i = 0; i < runs(); ++i)
    check(i % kRanks, fmt::format("kill-at idle {}", 1 + i), "", 1000, 137, true);
}

TEST_F(Faults, KilledAtAnyMicrosecond) {
  std::random_device device;
  const unsigned seed = device();
  std::mt19937 random(seed);
  RecordProperty("seed", std::to_string(seed));
  std::printf("seed %u\n", seed);
  for (int i = 0; i < runs() * 5; ++i)
    check(static_cast<int>(random() % kRanks),
          fmt::format("kill-after {} 0", 300'000 + random() % 500'000), "", 1000, 137, true);
}

TEST_F(Faults, KilledOverTcp) {
  for (int i = 0; i < runs(); ++i)
    check(i % kRanks, fmt::format("kill-at transfer {}", 3 + i), "TUTTI_BACKEND=tcp", 1000, 137,
          true);
}

TEST_F(Faults, KilledOverGloo) {
  if (!TUTTI_HAS_GLOO) GTEST_SKIP() << "backend gloo is not built here";
  for (int i = 0; i < runs(); ++i) {
    check((i + 1) % kRanks, fmt::format("kill-at transfer {}", 3 + i), "TUTTI_BACKEND=gloo", 1000,
          137, true);
    check((i + 2) % kRanks, fmt::format("kill-after {} 0", 400'000 + 1000 * i),
          "TUTTI_BACKEND=gloo", 1000, 137, true);
  }
}

TEST_F(Faults, StoppedOverGloo) {
  if (!TUTTI_HAS_GLOO) GTEST_SKIP() << "backend gloo is not built here";
  for (int i = 0; i < runs(); ++i)
    check((i + 3) % kRanks, "stop-after 400000 0", "TUTTI_BACKEND=gloo TUTTI_PEER_TIMEOUT=1.5",
          2500, 0, true);
}

// Over memory that the ranks share, and over TCP.
TEST_F(Faults, KilledOverUcx) {
  if (!TUTTI_HAS_UCX) GTEST_SKIP() << "backend ucx is not built here";
  for (const char* transports : {"", " UCX_TLS=tcp"})
    for (int i = 0; i < runs(); ++i) {
      const auto environment = fmt::format("TUTTI_BACKEND=ucx{}", transports);
      check((i + 1) % kRanks, fmt::format("kill-at transfer {}", 3 + i), environment, 1000, 137,
            true);
      check((i + 2) % kRanks, fmt::format("kill-after {} 0", 400'000 + 1000 * i), environment, 1000,
            137, true);
    }
}

TEST_F(Faults, StoppedOverUcx) {
  if (!TUTTI_HAS_UCX) GTEST_SKIP() << "backend ucx is not built here";
  for (int i = 0; i < runs(); ++i)
    check((i + 3) % kRanks, "stop-after 400000 0", "TUTTI_BACKEND=ucx TUTTI_PEER_TIMEOUT=1.5", 2500,
          0, true);
}

// Two levels on two hosts, which are one in truth.
TEST_F(Faults, KilledOverShmTcp) {
  program_ = kOnTwoHosts;
  for (int i = 0; i < runs(); ++i)
    check((i + 1) % kRanks, fmt::format("kill-at transfer {}", 3 + i), "TUTTI_BACKEND=shm+tcp",
          1000, 137, true);
}

TEST_F(Faults, StoppedOverShmTcp) {
  program_ = kOnTwoHosts;
  for (int i = 0; i < runs(); ++i)
    check((i + 1) % kRanks, "stop-after 400000 0", "TUTTI_BACKEND=shm+tcp TUTTI_PEER_TIMEOUT=1.5",
          2500, 0, true);
}

TEST_F(Faults, KilledOverShmUcx) {
  if (!TUTTI_HAS_UCX) GTEST_SKIP() << "backend ucx is not built here";
  program_ = kOnTwoHosts;
  for (int i = 0; i < runs(); ++i)
    check((i + 2) % kRanks, fmt::format("kill-at transfer {}", 3 + i), "TUTTI_BACKEND=shm+ucx",
          1000, 137, true);
}

TEST_F(Faults, StoppedOverShmUcx) {
  if (!TUTTI_HAS_UCX) GTEST_SKIP() << "backend ucx is not built here";
  program_ = kOnTwoHosts;
  for (int i = 0; i < runs(); ++i)
    check((i + 3) % kRanks, "stop-after 400000 0", "TUTTI_BACKEND=shm+ucx TUTTI_PEER_TIMEOUT=1.5",
          2500, 0, true);
}

// NCCL itself hangs on a rank that is gone; ours ends it.
TEST_F(Faults, KilledOverNccl) {
  if (!TUTTI_HAS_NCCL) GTEST_SKIP() << "backend nccl is not built here";
  for (int i = 0; i < runs(); ++i) {
    check((i + 1) % kRanks, fmt::format("kill-at transfer {}", 3 + 7 * i), on_fakes("nccl"), 3000,
          137, true);
    check((i + 2) % kRanks, fmt::format("kill-after {} 0", 500'000 + 1000 * i), on_fakes("nccl"),
          3000, 137, true);
  }
}

TEST_F(Faults, StoppedOverNccl) {
  if (!TUTTI_HAS_NCCL) GTEST_SKIP() << "backend nccl is not built here";
  for (int i = 0; i < runs(); ++i)
    check((i + 3) % kRanks, fmt::format("stop-at transfer {}", 4 + 7 * i),
          on_fakes("nccl") + " TUTTI_PEER_TIMEOUT=1.5", 2500, 0, true);
}

TEST_F(Faults, KilledOverNcclTcp) {
  if (!TUTTI_HAS_NCCL) GTEST_SKIP() << "backend nccl is not built here";
  program_ = kOnTwoHosts;
  for (int i = 0; i < runs(); ++i)
    check((i + 2) % kRanks, fmt::format("kill-at transfer {}", 3 + 7 * i), on_fakes("nccl+tcp"),
          3000, 137, true);
}

TEST_F(Faults, StoppedOverNcclTcp) {
  if (!TUTTI_HAS_NCCL) GTEST_SKIP() << "backend nccl is not built here";
  program_ = kOnTwoHosts;
  for (int i = 0; i < runs(); ++i)
    check((i + 1) % kRanks, fmt::format("stop-at transfer {}", 4 + 7 * i),
          on_fakes("nccl+tcp") + " TUTTI_PEER_TIMEOUT=1.5", 2500, 0, true);
}

TEST_F(Faults, StoppedOverTcp) {
  for (int i = 0; i < runs(); ++i)
    check((i + 2) % kRanks, "stop-after 400000 0", "TUTTI_BACKEND=tcp TUTTI_PEER_TIMEOUT=1.5", 2500,
          0, true);
}

TEST_F(Faults, StoppedIsNamedAsSilentAndHarmsNothingWhenItWakes) {
  for (int i = 0; i < runs(); ++i)
    check(i % kRanks, "stop-after 400000 0", "TUTTI_PEER_TIMEOUT=1.5", 2500, 0, true);
}

}  // namespace
