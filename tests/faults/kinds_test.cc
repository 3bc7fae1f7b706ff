// A rank is killed, and one is stopped, while the ranks run steps of one kind: every survivor names
// it, and goes on with that kind after shrink. Every day each kind over one backend in each form;
// kinds_full_test.cc has all of them, FAULT_RUNS times.

#include "tests/faults/kinds.h"

namespace tutti::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Each, Kinds, testing::ValuesIn(kKinds), kind_name);

TEST_P(Kinds, AKilledRankIsNamed) {
  kill_one("shm", blocking(), 3);
  kill_one("tcp", named(), 2);
}

TEST_P(Kinds, AStoppedRankIsNamed) {
  // Blocking in shared memory is a way of its own, everything else ends as named calls do.
  const bool is_odd = place_of(GetParam()) % 2 == 1;
  stop_one(is_odd ? "tcp" : "shm", is_odd ? named() : blocking(), 3);
}

}  // namespace
}  // namespace tutti::test
