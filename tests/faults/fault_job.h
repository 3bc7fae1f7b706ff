#pragma once

// Jobs under tutti-run in which one rank dies or stops. Every survivor must name it in time and
// continue. FAULT_RUNS sets the number of runs of each case (default 2).

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

namespace tutti::test {

inline constexpr int kRanks = 4;
inline constexpr std::string_view kSharedMemory = "/dev/shm/";

inline int runs() {
  const char* text = std::getenv("FAULT_RUNS");
  return text == nullptr ? 2 : std::max(1, std::atoi(text));
}

struct JobResult {
  int code = -1;
  std::string output;
};

inline JobResult run_job(const std::string& command) {
  JobResult result;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      ::popen(("timeout -k 1 40 " + command + " 2>&1").c_str(), "r"), nullptr);
  char buffer[4096];
  for (size_t size; (size = std::fread(buffer, 1, sizeof buffer, pipe.get())) > 0;)
    result.output.append(buffer, size);
  const int status = ::pclose(pipe.release());
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

// Files in /dev/shm that no process has mapped. Other files there may belong to jobs of other
// tests.
inline std::set<std::string> abandoned() {
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

// Returns the abandoned files that were not in `before`. A new file gets a second to be mapped.
inline std::set<std::string> left_behind(const std::set<std::string>& before) {
  std::set<std::string> left;
  for (int attempt = 0; attempt < 20; ++attempt) {
    left = abandoned();
    for (const auto& name : before) left.erase(name);
    if (left.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return left;
}

class FaultJob : public testing::Test {
 protected:
  FaultJob() : stamp_(fmt::format("{}fault_stamp_{}_", testing::TempDir(), ::getpid())) {}
  ~FaultJob() override {
    std::filesystem::remove(stamp_);
    std::filesystem::remove_all(folder_);
  }

  // Runs one job, and checks the messages of all survivors and that nothing is left behind. For
  // every second victim that is killed after the ranks connected, the job's store is stopped too,
  // until all ranks know of the loss.
  void check(int victim, const std::string& how, std::string settings, double limit_ms,
             int expected_code, bool must_shrink) {
    const bool all_are_connected =
        how.starts_with("kill-at transfer") || how.starts_with("kill-after");
    if (must_shrink && all_are_connected && ++losses_ % 2 == 0) {
      settings += " FAULT_STORE_STANDS_STILL=1";
      limit_ms += 500;  // each survivor waits 300 ms for the store
    }
    SCOPED_TRACE(fmt::format("victim {} {} {}", victim, how, settings));
    std::filesystem::remove(stamp_);
    const auto before = abandoned();
    const auto result = run_job(fmt::format("env {} '{}' -np {} {} {} {} {}", settings, TUTTI_RUN,
                                            ranks_, program_, victim, how, stamp_));
    SCOPED_TRACE(result.output);
    EXPECT_EQ(result.code, expected_code);
    EXPECT_EQ(result.output.find("unexpected"), std::string::npos);
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank == victim) continue;
      std::smatch match;
      const std::regex names(fmt::format("rank {} names (-?\\d+) after (-?\\d+) ms", rank));
      ASSERT_TRUE(std::regex_search(result.output, match, names))
          << "rank " << rank << " said nothing";
      EXPECT_EQ(match[1], std::to_string(victim));
      EXPECT_LE(std::stod(match[2]), limit_ms) << "rank " << rank;
      if (must_shrink) {
        const auto place = rank - (rank > victim ? 1 : 0);
        EXPECT_THAT(result.output,
                    testing::HasSubstr(fmt::format("rank {} goes on as {} of {}, sum {}", rank,
                                                   place, ranks_ - 1, ranks_ - 1)));
      }
    }
    if (settings.find(folder_) != std::string::npos) expect_nccl(result.output, victim);
    EXPECT_THAT(left_behind(before), testing::IsEmpty());
    EXPECT_FALSE(is_running(stamp_)) << "a process is left";
  }

  // The data of every survivor went through NCCL, which the survivor then aborted. Within the
  // victim's first step, a survivor may not have sent any data yet.
  void expect_nccl(const std::string& output, int victim) const {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      const std::regex went(fmt::format("rank {} had {}\\d* operations of NCCL and aborted [1-9]",
                                        rank, in_first_step_ ? "" : "[1-9]"));
      EXPECT_TRUE(std::regex_search(output, went)) << "rank " << rank;
    }
  }

  // Settings for a job on the fake device and the fake NCCL, whose ranks connect through a folder.
  std::string on_fakes(const std::string& backend) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    return fmt::format("TUTTI_BACKEND={} TUTTI_BACKEND_LIBRARY='{}' FAKE_NCCL_FOLDER={}", backend,
                       TUTTI_FAKE_NCCL, folder_);
  }

  const std::string stamp_;
  const std::string folder_ = stamp_ + "_nccl";
  std::string program_ = "'" FAULT_RANK "'";  // quoted for a shell
  int ranks_ = kRanks;
  bool in_first_step_ = false;  // the victim ends in its first step
  int losses_ = 0;
};

}  // namespace tutti::test
