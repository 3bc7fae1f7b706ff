#include <stdio.h>
#include <tutti.h>

int main(void) {
  tutti_comm_t comm;
  double value = 1;
  tutti_tensor_t tensor = tutti_vector(&value, 1, TUTTI_F64);
  if (tutti_create(&comm) != TUTTI_OK ||
      tutti_allreduce(comm, "value", &tensor, TUTTI_SUM, NULL) != TUTTI_OK) {
    fprintf(stderr, "%s\n", tutti_last_error());
    return 1;
  }
  int size = tutti_size(comm);
  tutti_destroy(comm);
  if (size == 2 && value == 2) return 0;
  fprintf(stderr, "%d ranks, sum %g\n", size, value);
  return 1;
}
