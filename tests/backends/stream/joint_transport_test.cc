// One transport out of several.

#include "tutti/backends/stream/joint_transport.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/backends/support/world.h"

namespace tutti::test {
namespace {

// Data goes by one part and control messages by another, over one slow link: what comes by either
// says that the peer lives.
TEST(JointTransport, APeerIsAsQuietAsItIsOnAnyPart) {
  const auto control = make_transports(find_backend("tcp"), 3);
  const auto data = make_transports(find_backend("tcp"), 2);  // of ranks 0 and 2
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

}  // namespace
}  // namespace tutti::test
