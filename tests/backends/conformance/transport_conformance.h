#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/backends/support/world.h"
#include "tutti/base/descriptor.h"
#include "tutti/collectives/transport.h"

// The conformance suite of Transport. transport_conformance.cc tests messages, and
// transport_life_conformance.cc sleep and the end of ranks. This header has the fixture. A test
// program links the suite (LIBRARIES tutti_transport_conformance) and names its transports:
//   INSTANTIATE_TEST_SUITE_P(Memory, TransportConformance, testing::Values(...));

namespace tutti::test {

using Transports = std::vector<std::unique_ptr<Transport>>;

struct TransportMaker {
  std::string name;
  std::string route;                    // expected route(); empty if it depends on the peer
  std::function<Transports(int)> make;  // the transports of all ranks, in this process
};

inline void PrintTo(const TransportMaker& maker, std::ostream* out) { *out << maker.name; }

constexpr double kPatience = 20;

class TransportConformance : public testing::TestWithParam<TransportMaker> {
 protected:
  void open(int size) { ends_ = GetParam().make(size); }
  Transport& transport(int rank) { return *ends_[static_cast<size_t>(rank)]; }
  void close(int rank) { ends_[static_cast<size_t>(rank)].reset(); }

  bool progress_all() {
    bool moved = false;
    for (auto& transport : ends_)
      if (transport) moved |= transport->progress();
    return moved;
  }
  /// Drives all ranks until the condition holds.
  bool until(const std::function<bool()>& condition) {
    const auto deadline = Deadline::after(kPatience);
    while (!condition()) {
      progress_all();
      if (deadline.passed()) return false;
    }
    return true;
  }
  /// Drives all ranks until nothing has moved for 20 ms.
  void settle() {
    for (auto quiet = Clock::now(); Clock::now() - quiet < std::chrono::milliseconds(20);)
      if (progress_all())
        quiet = Clock::now();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  TransferState finish(Transport& transport, Ticket ticket, uint32_t* verdict = nullptr) {
    TransferState state = TransferState::pending;
    EXPECT_TRUE(until([&] {
      if (state == TransferState::pending) state = transport.test(ticket, verdict);
      return state != TransferState::pending;
    }));
    return state;
  }
  std::optional<PeerEvent> wait_event(Transport& transport) {
    std::optional<PeerEvent> event;
    EXPECT_TRUE(until([&] { return event || (event = transport.take_event()); }));
    return event;
  }
  /// Sleeps as an engine does when it has nothing to do.
  static void rest(Transport& transport) {
    if (!transport.arm()) return;
    Poller poller;
    poller.watch(transport.descriptor(), 1 /* EPOLLIN */);
    ASSERT_TRUE(poller.wait(static_cast<int>(kPatience * 1000))) << "woken by nobody";
  }
  /// Returns whether the transport falls asleep and stays so. It may wake up once before.
  bool comes_to_rest(Transport& transport) {
    Poller poller;
    poller.watch(transport.descriptor(), 1 /* EPOLLIN */);
    for (int looks = 0; looks < 2; ++looks) {
      if (!until([&] { return transport.arm(); })) return false;
      if (!poller.wait(20)) return true;
      transport.progress();
    }
    return false;
  }
  static TransferState sleep_until_over(Transport& transport, Ticket ticket,
                                        uint32_t* verdict = nullptr) {
    while (true) {
      const auto state = transport.test(ticket, verdict);
      if (state != TransferState::pending) return state;
      if (!transport.progress()) rest(transport);
      if (HasFatalFailure()) return TransferState::failed;
    }
  }

  Transports ends_;
};

}  // namespace tutti::test
