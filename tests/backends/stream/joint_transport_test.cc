// One transport that combines several.

#include "tutti/backends/stream/joint_transport.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/backends/support/world.h"
#include "tutti/backends/hierarchical/mixed_transport.h"

namespace tutti::test {
namespace {

// Data and control messages use different parts over one slow link. Traffic on either part shows
// that the peer is alive.
TEST(JointTransport, APeerIsAsQuietAsItIsOnAnyPart) {
  const auto control = make_transports(find_backend("tcp"), 3);
  const auto data = make_transports(find_backend("tcp"), 2);  // between ranks 0 and 2
  JointTransport joint({{control[0].get()}, {data[0].get(), {0, 2}}});
  constexpr double kWhile = 0.4;
  std::this_thread::sleep_for(std::chrono::duration<double>(kWhile));
  EXPECT_GE(joint.quiet_seconds(2), kWhile / 2);
  std::vector<std::byte> sent(100), received(100);
  const Ticket send = data[1]->isend(0, {1, 0, 0}, sent);
  const Ticket receive = data[0]->irecv(1, 1, 0, received);
  const auto deadline = Deadline::after(20);
  auto state = TransferState::pending;
  while (state == TransferState::pending && !deadline.passed()) {
    for (const auto& end : data) end->progress();
    state = data[0]->test(receive);
  }
  ASSERT_EQ(state, TransferState::done);
  EXPECT_NE(data[1]->test(send), TransferState::failed);
  EXPECT_LT(joint.quiet_seconds(2), kWhile / 2);
  EXPECT_GE(joint.quiet_seconds(1), kWhile / 2);
  EXPECT_GE(control[0]->quiet_seconds(2), kWhile / 2);
}

// Rank 0 has rank 2 on its host and rank 1 elsewhere. The counters must use the communicator's
// ranks, not those of the parts.
TEST(MixedTransport, CountsBytesByTheRanksOfTheCommunicator) {
  auto near = make_transports(find_backend("memory"), 2);
  auto far = make_transports(find_backend("memory"), 3);
  MixedTransport made(std::move(near[0]), {0, 2}, std::move(far[0]));
  Transport& mixed = made;
  const std::vector<std::byte> large(1000), small(10);
  const Ticket tickets[] = {mixed.isend(2, {1, 0, 0}, large), mixed.isend(1, {1, 0, 0}, small)};
  for (const Ticket ticket : tickets) {
    const auto deadline = Deadline::after(20);
    auto state = TransferState::pending;
    while ((state = mixed.test(ticket)) == TransferState::pending && !deadline.passed())
      mixed.progress();
    ASSERT_EQ(state, TransferState::done);
  }
  const auto counted = mixed.counters().bytes_to_peer;
  ASSERT_EQ(counted.size(), 3u);
  EXPECT_EQ(counted[0], 0u);
  EXPECT_GE(counted[1], 10u);
  EXPECT_LT(counted[1], 1000u);
  EXPECT_GE(counted[2], 1000u);
}

}  // namespace
}  // namespace tutti::test
