// A rank is killed, and one is stopped, in steps of each kind and form over each backend, on 2 and
// 3 ranks. See kinds_test.cc.

#include "tests/faults/kinds.h"

namespace tutti::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Each, Kinds, testing::ValuesIn(kKinds), kind_name);

TEST_P(Kinds, AKilledRankIsNamedEverywhere) {
  for (int run = 0; run < runs(); ++run)
    for (const char* backend : {"shm", "tcp"})
      for (const int ranks : {2, 3}) {
        kill_one(backend, named(), ranks);
        kill_one(backend, blocking(), ranks);
      }
}

TEST_P(Kinds, AStoppedRankIsNamedEverywhere) {
  for (int run = 0; run < runs(); ++run)
    for (const char* backend : {"shm", "tcp"}) {
      stop_one(backend, named(), 3);
      stop_one(backend, blocking(), 2);
    }
}

}  // namespace
}  // namespace tutti::test
