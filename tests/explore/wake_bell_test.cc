// The bell that wakes the engine's thread, while other threads ring it at any moment.

#include "tutti/core/threads/wake_bell.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/explore/expectations.h"
#include "tests/explore/explored.h"
#include "tests/explore/explorer.h"

namespace tutti::explore {
namespace {

constexpr auto kNow = std::chrono::microseconds(0);

// The engine sleeps while threads publish and ring. No ring may be lost. Once nothing is published
// any more, at most one more sleep may be cut short. To lose a ring, two threads must pass each
// other twice, which costs 3.
TEST(ExploredWakeBell, NoRingIsLostAndNoneKeepsRinging) {
  const auto outcome = explore(
      [](Model& model) {
        struct World {
          WakeBellOf<Explored> bell;
          Explored::Atomic<int> put_down{0};
        };
        const auto world = std::make_shared<World>();
        for (const auto* ringer : {"one ringer", "another ringer"})
          model.thread(ringer, [world] {
            for (int i = 0; i < 2; ++i) {
              ++world->put_down;
              world->bell.ring();
            }
          });
        model.thread("sleeper", [world] {
          auto& bell = world->bell;
          for (int taken = 0; taken < 4;) {
            bell.silence();
            const int more = world->put_down.exchange(0);
            taken += more;
            if (more > 0) continue;
            bell.wait(kForEver);
            bell.slept();
          }
        });
        model.finally([world] {
          auto& bell = world->bell;
          bell.silence();
          if (!bell.wait(kNow)) return;
          bell.slept();
          bell.silence();
          require(!bell.wait(kNow), "a bell that nobody rings any more ends a second sleep");
        });
      },
      Bounds{.cost = 3});
  EXPECT_EQ(outcome.failure, "") << outcome.trace;
  EXPECT_TRUE(outcome.complete);
  RecordProperty("runs", std::to_string(outcome.runs));
}

}  // namespace
}  // namespace tutti::explore
