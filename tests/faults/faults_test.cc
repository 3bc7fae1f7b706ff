// Ranks that die or stop under tutti-run: every survivor must name the rank in time and continue.
// FAULT_RUNS sets the number of runs of each case (default 2).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <random>
#include <string>
#include <vector>

#include "tests/faults/fault_job.h"

namespace {

using tutti::test::kRanks;
using tutti::test::runs;
using Faults = tutti::test::FaultJob;

constexpr auto* kOnTwoHosts =
    "sh -c 'TUTTI_HOST=host$((TUTTI_RANK / 2)) exec \"$0\" \"$@\"' '" FAULT_RANK "'";

// What ends or stops a rank. In its run number i the victim is so many behind rank i, and # in
// `how` is `first` and so many steps of i, which begin again after `period`.
struct Blow {
  int victim;
  const char* how;
  int first = 0, step = 0, period = INT_MAX;
  const char* settings = "";
};

struct Fault {
  std::string name;
  std::string backend;  // empty: the one that is chosen by itself
  std::vector<Blow> blows;
};

bool is_built(const std::string& backend) {
  const auto names = [&](const char* part) { return backend.find(part) != std::string::npos; };
  return (TUTTI_HAS_GLOO || !names("gloo")) && (TUTTI_HAS_UCX || !names("ucx")) &&
         (TUTTI_HAS_NCCL || !names("nccl"));
}

class OneFault final : public Faults {
 public:
  explicit OneFault(const Fault& fault) : fault_(fault) {}
  void TestBody() override {
    const auto& backend = fault_.backend;
    if (!is_built(backend)) GTEST_SKIP() << "backend " << backend << " is not built here";
    // Two levels on two hosts, which are one in truth.
    if (backend.find('+') != std::string::npos) program_ = kOnTwoHosts;
    const bool is_nccl = backend.starts_with("nccl");
    const bool stops = fault_.name.starts_with("Stopped");
    for (int run = 0; run < runs(); ++run)
      for (const auto& blow : fault_.blows) {
        std::string how = blow.how, settings = blow.settings;
        if (const auto at = how.find('#'); at != how.npos)
          how.replace(at, 1, std::to_string(blow.first + run * blow.step % blow.period));
        if (is_nccl)
          settings += on_fakes(backend);
        else if (!backend.empty())
          settings += "TUTTI_BACKEND=" + backend;
        if (stops) settings += " TUTTI_PEER_TIMEOUT=1.5";
        check((run + blow.victim) % kRanks, how, settings,
              stops     ? 2500
              : is_nccl ? 3000
                        : 1000,
              stops ? 0 : 137, fault_.name != "KilledInRendezvous");
      }
  }

 private:
  const Fault fault_;
};

// NCCL itself hangs on a rank that is gone; ours ends it. The victim's first step, of 12 transfers
// at most, is over by then: before that a survivor may not have come to any operation of NCCL yet.
const Fault kFaults[] = {
    {"KilledInRendezvous", "", {{0, "kill-at rendezvous 1"}}},
    {"KilledInNegotiation", "", {{1, "kill-at negotiation #", 1, 1, 2}}},
    {"KilledWhilePacking", "", {{2, "kill-at pack #", 1, 7}}},
    {"KilledInTransfer", "", {{3, "kill-at transfer #", 1, 11}}},
    {"KilledWhenIdle", "", {{0, "kill-at idle #", 1, 1}}},
    {"KilledOverTcp", "tcp", {{0, "kill-at transfer #", 3, 1}}},
    {"StoppedOverTcp", "tcp", {{2, "stop-after 400000 0"}}},
    {"KilledOverGloo",
     "gloo",
     {{1, "kill-at transfer #", 3, 1}, {2, "kill-after # 0", 400'000, 1000}}},
    {"StoppedOverGloo", "gloo", {{3, "stop-after 400000 0"}}},
    // Over memory that the ranks share, and over TCP.
    {"KilledOverUcx",
     "ucx",
     {{1, "kill-at transfer #", 3, 1},
      {2, "kill-after # 0", 400'000, 1000},
      {1, "kill-at transfer #", 3, 1, INT_MAX, "UCX_TLS=tcp "},
      {2, "kill-after # 0", 400'000, 1000, INT_MAX, "UCX_TLS=tcp "}}},
    {"StoppedOverUcx", "ucx", {{3, "stop-after 400000 0"}}},
    {"KilledOverShmTcp", "shm+tcp", {{1, "kill-at transfer #", 3, 1}}},
    {"StoppedOverShmTcp", "shm+tcp", {{1, "stop-after 400000 0"}}},
    {"KilledOverShmUcx", "shm+ucx", {{2, "kill-at transfer #", 3, 1}}},
    {"StoppedOverShmUcx", "shm+ucx", {{3, "stop-after 400000 0"}}},
    {"KilledOverNccl",
     "nccl",
     {{1, "kill-at transfer #", 13, 7}, {2, "kill-after # 0", 500'000, 1000}}},
    {"StoppedOverNccl", "nccl", {{3, "stop-at transfer #", 14, 7}}},
    {"KilledOverNcclTcp", "nccl+tcp", {{2, "kill-at transfer #", 13, 7}}},
    {"StoppedOverNcclTcp", "nccl+tcp", {{1, "stop-at transfer #", 14, 7}}},
};

const bool are_registered = [] {
  for (const auto& fault : kFaults)
    testing::RegisterTest("Faults", fault.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [&fault]() -> Faults* { return new OneFault(fault); });
  return true;
}();

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

TEST_F(Faults, KilledInTheFirstStepOverNccl) {
  if (!TUTTI_HAS_NCCL) GTEST_SKIP() << "backend nccl is not built here";
  in_first_step_ = true;
  for (int i = 0; i < runs(); ++i)
    check((i + 1) % kRanks, fmt::format("kill-at transfer {}", 1 + i % 3), on_fakes("nccl"), 3000,
          137, true);
  program_ = kOnTwoHosts;
  for (int i = 0; i < runs(); ++i)
    check((i + 2) % kRanks, fmt::format("kill-at transfer {}", 3 - i % 3), on_fakes("nccl+tcp"),
          3000, 137, true);
}

TEST_F(Faults, StoppedIsNamedAsSilentAndHarmsNothingWhenItWakes) {
  for (int i = 0; i < runs(); ++i)
    check(i % kRanks, "stop-after 400000 0", "TUTTI_PEER_TIMEOUT=1.5", 2500, 0, true);
}

}  // namespace
