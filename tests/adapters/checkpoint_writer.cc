// checkpoint_writer FOLDER STEP: the ranks save a state of several types in which every bit follows
// from the step (checkpoint_state.h). Readers in other languages test themselves with it.

#include <cstdio>
#include <string>

#include "tests/adapters/checkpoint_state.h"

int main(int count, char** arguments) {
  if (count != 3) return 2;
  try {
    const auto comm = tutti::Communicator::create();
    tutti::test::CheckpointState state(*comm);
    const int64_t step = std::stoll(arguments[2]);
    state.fill(step);
    tutti::CheckpointFolder(*comm, arguments[1]).save(step, state.placed(), {{"who", "a test"}});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint_writer: %s\n", error.what());
    return 1;
  }
  return 0;
}
