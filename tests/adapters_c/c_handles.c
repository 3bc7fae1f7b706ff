/* Forms by handle, out of place, in groups and from any rank, raw bytes, and memory that the ranks
 * reach. */
#include <stdlib.h>
#include <string.h>

#include "c_checks.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define EXPECT(condition) \
  if (!(condition)) return __FILE__ ":" TEXT(__LINE__) ": " #condition
#define EXPECT_OK(call) \
  if ((call) != TUTTI_OK) return tutti_last_error()

const char* check_handles(tutti_comm_t comm) {
  const int rank = tutti_rank(comm), size = tutti_size(comm), last = size - 1;
  int64_t mine = rank, gathered[8], scattered, sums[8], sum, sent[8], came[8];
  tutti_tensor_t one = tutti_vector(&mine, 1, TUTTI_I64);
  tutti_tensor_t many = tutti_vector(gathered, size, TUTTI_I64);
  tutti_tensor_t part = tutti_vector(&scattered, 1, TUTTI_I64);
  tutti_tensor_t addends = tutti_vector(sums, size, TUTTI_I64);
  tutti_tensor_t total = tutti_vector(&sum, 1, TUTTI_I64);
  tutti_tensor_t out = tutti_vector(sent, size, TUTTI_I64);
  tutti_tensor_t in = tutti_vector(came, size, TUTTI_I64);
  tutti_reduce_options_t add = TUTTI_REDUCE_OPTIONS;
  add.op = TUTTI_SUM;
  const tutti_tensor_t* at_last = rank == last ? &many : NULL;
  tutti_name_t to_all, to_last, dealt, shares, exchanged, root, reduced, ends;
  EXPECT_OK(tutti_declare(comm, "handle allgather", &one, &to_all));
  EXPECT_OK(tutti_declare(comm, "handle gather", &one, &to_last));
  EXPECT_OK(tutti_declare(comm, "handle scatter", &many, &dealt));
  EXPECT_OK(tutti_declare(comm, "handle reduce_scatter", &addends, &shares));
  EXPECT_OK(tutti_declare(comm, "handle alltoall", &out, &exchanged));
  EXPECT_OK(tutti_declare(comm, "handle broadcast", &one, &root));
  EXPECT_OK(tutti_declare(comm, "handle reduce", &one, &reduced));
  EXPECT_OK(tutti_declare(comm, "handle barrier", &one, &ends));
  for (int step = 0; step < 6; ++step) {
    memset(gathered, 0, sizeof gathered);
    memset(came, 0, sizeof came);
    scattered = sum = -1;
    for (int i = 0; i < size; ++i) sums[i] = i + step, sent[i] = 10 * rank + i;
    EXPECT_OK(START(NULL, TUTTI_ALLGATHER, .handle = to_all, .input = &one, .output = &many));
    for (int i = 0; i < size; ++i) EXPECT(gathered[i] == i);
    EXPECT_OK(START(NULL, TUTTI_GATHER, .handle = to_last, .input = &one, .output = at_last,
                    .root = last));
    EXPECT_OK(START(NULL, TUTTI_SCATTER, .handle = dealt, .input = at_last, .output = &part,
                    .root = last));
    EXPECT(scattered == rank);
    EXPECT_OK(START(NULL, TUTTI_REDUCE_SCATTER, .handle = shares, .input = &addends,
                    .output = &total, .options = &add));
    EXPECT(sum == (int64_t)size * (rank + step));
    EXPECT_OK(START(NULL, TUTTI_ALLTOALL, .handle = exchanged, .input = &out, .output = &in));
    for (int i = 0; i < size; ++i) EXPECT(came[i] == 10 * i + rank);
    EXPECT_OK(START(NULL, TUTTI_REDUCE, .handle = reduced, .input = &one,
                    .output = rank == last ? &total : NULL, .root = last,
                    .options = OP(TUTTI_MAX)));
    EXPECT(rank != last || sum == last);
    mine = 100 + rank;
    EXPECT_OK(START(NULL, TUTTI_BROADCAST, .handle = root, .input = &one, .root = last));
    EXPECT(mine == 100 + last);
    mine = rank;
    EXPECT_OK(START(NULL, TUTTI_BARRIER, .handle = ends));
  }
  EXPECT(START(NULL, TUTTI_BARRIER) == TUTTI_INVALID_ARGUMENT);

  /* Pairs of ranks by one handle each. */
  tutti_name_t pair;
  EXPECT_OK(tutti_declare(comm, "handle pair", &one, &pair));
  const int peer = rank ^ 1;
  if (peer < size) {
    int64_t value = rank;
    tutti_tensor_t tensor = tutti_vector(&value, 1, TUTTI_I64);
    if (rank % 2 == 0) {
      EXPECT_OK(START(NULL, TUTTI_SEND, .handle = pair, .input = &tensor, .root = peer));
    } else {
      EXPECT_OK(START(NULL, TUTTI_RECV, .handle = pair, .output = &tensor, .root = peer));
    }
    EXPECT(rank % 2 == 0 || value == peer);
  }
  /* All others send to the last one. */
  if (size > 1) {
    int64_t value = rank;
    tutti_tensor_t tensor = tutti_vector(&value, 1, TUTTI_I64);
    if (rank != last) {
      EXPECT_OK(START(NULL, TUTTI_SEND, .name = "any", .input = &tensor, .root = last));
    }
    for (int i = 0; rank == last && i < last; ++i) {
      tutti_work_t work;
      int source = -1;
      EXPECT_OK(START(&work, TUTTI_RECV, .name = "any", .output = &tensor, .root = TUTTI_ANY_RANK));
      EXPECT_OK(tutti_work_source(work, &source));
      EXPECT(source >= 0 && source < last && value == source);
      tutti_work_release(work);
    }
    EXPECT_OK(tutti_barrier(comm, "all have come", NULL));
  }
  return NULL;
}

const char* check_more_places(tutti_comm_t comm) {
  const int rank = tutti_rank(comm), size = tutti_size(comm);
  /* Out of place, and in groups. */
  int32_t bits = 1 << rank | 64, odd = 0, root = rank == 0 ? 7 : -1, told = 0;
  tutti_tensor_t own = tutti_vector(&bits, 1, TUTTI_I32), result = tutti_vector(&odd, 1, TUTTI_I32);
  EXPECT_OK(RUN(TUTTI_ALLREDUCE, .name = "xor", .input = &own, .output = &result,
                .options = OP(TUTTI_BXOR)));
  EXPECT(odd == (((1 << size) - 1) | (size % 2 ? 64 : 0)) && bits == (1 << rank | 64));
  tutti_tensor_t from = tutti_vector(&root, 1, TUTTI_I32), to = tutti_vector(&told, 1, TUTTI_I32);
  EXPECT_OK(START(NULL, TUTTI_BROADCAST, .name = "told", .input = rank == 0 ? &from : NULL,
                  .output = &to));
  EXPECT(told == 7 && root == (rank == 0 ? 7 : -1));
  float p[2] = {(float)rank, 1}, q[4], all_p[16], all_q[32], sums[2][8], parts[2];
  for (int i = 0; i < 4; ++i) q[i] = (float)(10 * rank + i);
  tutti_tensor_t inputs[2] = {tutti_vector(p, 2, TUTTI_F32), tutti_vector(q, 4, TUTTI_F32)};
  tutti_tensor_t outputs[2] = {tutti_vector(all_p, 2 * size, TUTTI_F32),
                               tutti_vector(all_q, 4 * size, TUTTI_F32)};
  tutti_call_t calls[2] = {TUTTI_CALL(TUTTI_ALLGATHER), TUTTI_CALL(TUTTI_ALLGATHER)};
  for (int i = 0; i < 2; ++i) {
    calls[i].name = i == 0 ? "p" : "q";
    calls[i].input = &inputs[i];
    calls[i].output = &outputs[i];
  }
  EXPECT_OK(tutti_start_group(comm, "gathers", calls, 2, NULL));
  for (int i = 0; i < size; ++i)
    EXPECT(all_p[2 * i] == (float)i && all_q[4 * i + 3] == 10.0f * (float)i + 3);
  tutti_reduce_options_t add = TUTTI_REDUCE_OPTIONS;
  add.op = TUTTI_SUM;
  tutti_tensor_t reduced[2] = {tutti_vector(all_p, 2, TUTTI_F32),
                               tutti_vector(all_q, 4, TUTTI_F32)};
  for (int i = 0; i < 2; ++i) {
    calls[i].kind = TUTTI_ALLREDUCE;
    calls[i].output = &reduced[i];
    calls[i].options = &add;
  }
  EXPECT_OK(tutti_start_group(comm, "sums", calls, 2, NULL));
  EXPECT(all_p[1] == (float)size && p[1] == 1);
  for (int i = 0; i < size; ++i) sums[0][i] = sums[1][i] = (float)i;
  tutti_tensor_t wholes[2] = {tutti_vector(sums[0], size, TUTTI_F32),
                              tutti_vector(sums[1], size, TUTTI_F32)};
  tutti_tensor_t shares[2] = {tutti_vector(&parts[0], 1, TUTTI_F32),
                              tutti_vector(&parts[1], 1, TUTTI_F32)};
  for (int i = 0; i < 2; ++i) {
    calls[i].kind = TUTTI_REDUCE_SCATTER;
    calls[i].input = &wholes[i];
    calls[i].output = &shares[i];
  }
  EXPECT_OK(tutti_start_group(comm, "shares", calls, 2, NULL));
  EXPECT(parts[0] == (float)(rank * size) && parts[1] == parts[0]);

  /* Structs are moved and not reduced. */
  struct {
    double x;
    char kind;
  } mine = {rank + 0.5, 'k'}, everyone[8];
  tutti_tensor_t raw = tutti_matrix(&mine, 1, sizeof mine, TUTTI_RAW);
  tutti_tensor_t raws = tutti_matrix(everyone, size, sizeof mine, TUTTI_RAW);
  EXPECT_OK(START(NULL, TUTTI_ALLGATHER, .name = "structs", .input = &raw, .output = &raws));
  EXPECT(everyone[size - 1].x == size - 0.5 && everyone[0].kind == 'k');
  EXPECT(tutti_allreduce(comm, "structs", &raw, TUTTI_SUM, NULL) == TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "op sum cannot be applied to raw") != NULL);

  /* Memory that all reach. */
  tutti_region_t region;
  EXPECT_OK(tutti_allocate(comm, 400000, &region));
  float* values = tutti_region_data(region);
  EXPECT(values != NULL && values[99999] == 0);
  for (int i = 0; i < 100000; ++i) values[i] = (float)(rank + 1);
  tutti_tensor_t shared = tutti_vector(values, 100000, TUTTI_F32);
  EXPECT_OK(tutti_allreduce(comm, "shared", &shared, TUTTI_MAX, NULL));
  EXPECT(values[0] == (float)size && values[99999] == (float)size);
  tutti_region_handle_t handle = {0};
  EXPECT(tutti_region_export(region, &handle) == TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "struct_size of the handle is 0 (expected ") != NULL);
  handle.struct_size = sizeof handle;
  EXPECT_OK(tutti_region_export(region, &handle));
  EXPECT(size == 1 || (handle.kind == 1 && handle.bytes >= 400000));
  tutti_region_free(region);
  tutti_region_free(NULL);
  EXPECT(tutti_allocate(comm, -1, &region) == TUTTI_INVALID_ARGUMENT && region == NULL);
  EXPECT(tutti_region_data(NULL) == NULL);
  EXPECT(strstr(tutti_last_error(), "region must not be NULL") != NULL);
  return NULL;
}
