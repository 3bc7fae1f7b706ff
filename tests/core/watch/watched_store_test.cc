// A view of a store that calls a check (a "look") now and then. A wait ends when the check throws.
#include "tutti/core/watch/watched_store.h"

#include <gtest/gtest.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

// A backend may ask for a key again and again, each time for less than the time between two checks.
TEST(WatchedStore, EndsWaitsThatAreShorterThanTheTimeBetweenLooks) {
  int looks = 0;
  const auto store = make_watched_store(make_memory_store(), [&looks] {
    ++looks;
    throw Error(ErrorCode::peer_lost, "rank 1 died").with_rank(1);
  });
  const auto end = Deadline::after(5);
  auto code = ErrorCode::timeout;
  while (code == ErrorCode::timeout && !end.passed()) {
    try {
      store->get("a key that nobody sets", Deadline::after(0.02));
    } catch (const Error& error) {
      code = error.code();
    }
  }
  EXPECT_EQ(code, ErrorCode::peer_lost);
  EXPECT_EQ(looks, 1);
}

// The check may use the store through another view. It is not called again within itself.
TEST(WatchedStore, LooksAgainAfterALookThatThrew) {
  int looks = 0;
  const auto store = make_watched_store(make_memory_store(), [&looks] {
    if (++looks == 1) throw Error(ErrorCode::peer_lost, "rank 1 died").with_rank(1);
  });
  EXPECT_THROW(store->get("a key", Deadline::after(0.25)), Error);
  EXPECT_THROW(store->get("a key", Deadline::after(0.25)), Error);
  EXPECT_GE(looks, 2);
}

}  // namespace
}  // namespace tutti
