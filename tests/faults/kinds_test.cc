// A rank is killed, and one is stopped, while the ranks run steps of one kind. Every survivor must
// name it, and run that kind after shrink(). The daily run has each kind over one backend per form;
// kinds_full_test.cc has all combinations, FAULT_RUNS times.

#include "tests/faults/kinds.h"

namespace tutti::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Each, Kinds, testing::ValuesIn(kKinds), kind_name);

TEST_P(Kinds, AKilledRankIsNamed) {
  kill_one("shm", blocking(), 3);
  kill_one("tcp", named(), 2);
}

TEST_P(Kinds, AStoppedRankIsNamed) {
  // Blocking calls in shared memory have their own code for faults; all other calls fail as named
  // calls do.
  const bool is_odd = place_of(GetParam()) % 2 == 1;
  stop_one(is_odd ? "tcp" : "shm", is_odd ? named() : blocking(), 3);
}

}  // namespace
}  // namespace tutti::test
