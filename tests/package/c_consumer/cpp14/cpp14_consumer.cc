#include <tutti.h>

#include <cstdio>

static_assert(__cplusplus < 201703L, "linking tutti::c must not change a program's language");

// Newer C++ removed this syntax, but old trainers use it.
void old_trainer() throw(int) { throw 1; }

int main() {
  try {
    old_trainer();
  } catch (int) {
  }
  tutti_comm_t comm;
  double value = 1;
  const tutti_tensor_t tensor = tutti_vector(&value, 1, TUTTI_F64);
  if (tutti_create(&comm) != TUTTI_OK ||
      tutti_allreduce(comm, "value", &tensor, TUTTI_SUM, nullptr) != TUTTI_OK) {
    std::fprintf(stderr, "%s\n", tutti_last_error());
    return 1;
  }
  const bool right = tutti_size(comm) == 2 && value == 2;
  tutti_destroy(comm);
  return right ? 0 : 1;
}
