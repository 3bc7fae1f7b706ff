// Ranks that die or stop under tutti-run: every survivor must name the rank in time and continue.
// FAULT_RUNS sets the number of runs of each case (default 2).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/faults/fault_job.h"

namespace {

using tutti::test::kRanks;
using tutti::test::runs;
using Faults = tutti::test::FaultJob;

constexpr auto* kOnTwoHosts =
    "sh -c 'TUTTI_HOST=host$((TUTTI_RANK / 2)) exec \"$0\" \"$@\"' '" FAULT_RANK "'";

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

// Runs UCX over shared memory and over TCP.
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

// Two levels on two named hosts, which are the same machine.
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

// NCCL hangs on a rank that is gone; the backend must end it. The victim dies after its first step
// of at most 12 transfers: before that, a survivor may not have started any NCCL operation.
TEST_F(Faults, KilledOverNccl) {
  if (!TUTTI_HAS_NCCL) GTEST_SKIP() << "backend nccl is not built here";
  for (int i = 0; i < runs(); ++i) {
    check((i + 1) % kRanks, fmt::format("kill-at transfer {}", 13 + 7 * i), on_fakes("nccl"), 3000,
          137, true);
    check((i + 2) % kRanks, fmt::format("kill-after {} 0", 500'000 + 1000 * i), on_fakes("nccl"),
          3000, 137, true);
  }
}

TEST_F(Faults, StoppedOverNccl) {
  if (!TUTTI_HAS_NCCL) GTEST_SKIP() << "backend nccl is not built here";
  for (int i = 0; i < runs(); ++i)
    check((i + 3) % kRanks, fmt::format("stop-at transfer {}", 14 + 7 * i),
          on_fakes("nccl") + " TUTTI_PEER_TIMEOUT=1.5", 2500, 0, true);
}

TEST_F(Faults, KilledOverNcclTcp) {
  if (!TUTTI_HAS_NCCL) GTEST_SKIP() << "backend nccl is not built here";
  program_ = kOnTwoHosts;
  for (int i = 0; i < runs(); ++i)
    check((i + 2) % kRanks, fmt::format("kill-at transfer {}", 13 + 7 * i), on_fakes("nccl+tcp"),
          3000, 137, true);
}

TEST_F(Faults, StoppedOverNcclTcp) {
  if (!TUTTI_HAS_NCCL) GTEST_SKIP() << "backend nccl is not built here";
  program_ = kOnTwoHosts;
  for (int i = 0; i < runs(); ++i)
    check((i + 1) % kRanks, fmt::format("stop-at transfer {}", 14 + 7 * i),
          on_fakes("nccl+tcp") + " TUTTI_PEER_TIMEOUT=1.5", 2500, 0, true);
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
