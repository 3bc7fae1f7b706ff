#define _POSIX_C_SOURCE 199309L /* nanosleep */

#include "c_checks.h"

#include <string.h>
#include <time.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define EXPECT(condition) \
  if (!(condition)) return __FILE__ ":" TEXT(__LINE__) ": " #condition
#define EXPECT_OK(call) \
  if ((call) != TUTTI_OK) return tutti_last_error()

const char* check_reductions(tutti_comm_t comm) {
  const int rank = tutti_rank(comm), size = tutti_size(comm);
  const float sum = (float)(size * (size + 1) / 2);
  float values[6], result[6] = {0};
  for (int i = 0; i < 6; ++i) values[i] = (float)(rank + 1);
  tutti_tensor_t vector = tutti_vector(values, 6, TUTTI_F32);
  tutti_tensor_t matrix = tutti_matrix(values, 2, 3, TUTTI_F32);
  tutti_tensor_t output = tutti_matrix(result, 2, 3, TUTTI_F32);

  tutti_reduce_options_t options = TUTTI_REDUCE_OPTIONS;
  options.op = TUTTI_SUM;
  options.postscale = 2;
  options.wire = TUTTI_BF16;
  EXPECT_OK(START(NULL, TUTTI_ALLREDUCE, .name = "out of place", .input = &matrix,
                  .output = &output, .options = &options));
  EXPECT(result[0] == 2 * sum && result[5] == 2 * sum && values[0] == (float)(rank + 1));

  EXPECT_OK(START(NULL, TUTTI_REDUCE, .name = "reduce", .input = &vector,
                  .output = rank == size - 1 ? &vector : NULL, .root = size - 1,
                  .options = OP(TUTTI_MAX)));
  EXPECT(values[5] == (float)(rank == size - 1 ? size : rank + 1));

  EXPECT_OK(tutti_allreduce(comm, "in place", &vector, TUTTI_SUM, NULL));
  EXPECT(values[0] == sum && values[5] == sum);

  double a = rank, b = 10 * rank;
  tutti_tensor_t pair[2] = {tutti_vector(&a, 1, TUTTI_F64), tutti_vector(&b, 1, TUTTI_F64)};
  tutti_call_t calls[2] = {TUTTI_CALL(TUTTI_ALLREDUCE), TUTTI_CALL(TUTTI_ALLREDUCE)};
  for (int i = 0; i < 2; ++i) calls[i].name = i == 0 ? "a" : "b", calls[i].input = &pair[i];
  EXPECT_OK(tutti_start_group(comm, "group", calls, 2, NULL));
  EXPECT(a == (size - 1) / 2.0 && b == 10 * a);

  tutti_work_t work;
  int32_t rows[8];
  for (int i = 0; i < size; ++i) rows[i] = i;
  tutti_tensor_t dealt = tutti_vector(rows, size, TUTTI_I32), part;
  options = (tutti_reduce_options_t)TUTTI_REDUCE_OPTIONS;
  options.op = TUTTI_SUM;
  EXPECT_OK(START(&work, TUTTI_REDUCE_SCATTER, .name = "reduce_scatter", .input = &dealt,
                  .options = &options));
  EXPECT_OK(tutti_work_output(work, 0, &part));
  EXPECT(part.shape[0] == 1 && *(int32_t*)part.data == rank * size);
  tutti_work_release(work);
  return NULL;
}

const char* check_fast_paths(tutti_comm_t comm) {
  const int rank = tutti_rank(comm), size = tutti_size(comm);
  double loss = rank;
  EXPECT_OK(tutti_allreduce_value(comm, "loss", &loss, TUTTI_AVERAGE));
  EXPECT(loss == (size - 1) / 2.0);
  int32_t counts[3] = {rank, 1, -rank};
  tutti_tensor_t tensor = tutti_vector(counts, 3, TUTTI_I32);
  EXPECT_OK(RUN(TUTTI_ALLREDUCE, .name = "counts", .input = &tensor, .options = OP(TUTTI_MAX)));
  EXPECT(counts[0] == size - 1 && counts[1] == 1 && counts[2] == 0);

  /* The sums leave their types, the averages do not. */
  uint8_t bytes[3] = {200, 255, 0};
  tensor = tutti_vector(bytes, 3, TUTTI_U8);
  EXPECT_OK(tutti_allreduce(comm, "bytes", &tensor, TUTTI_AVERAGE, NULL));
  EXPECT_OK(RUN(TUTTI_ALLREDUCE, .name = "bytes", .input = &tensor, .options = OP(TUTTI_AVERAGE)));
  EXPECT(bytes[0] == 200 && bytes[1] == 255 && bytes[2] == 0);
  int64_t limits[2] = {INT64_MAX, INT64_MIN};
  tensor = tutti_vector(limits, 2, TUTTI_I64);
  EXPECT_OK(tutti_allreduce(comm, "limits", &tensor, TUTTI_AVERAGE, NULL));
  EXPECT_OK(RUN(TUTTI_ALLREDUCE, .name = "limits", .input = &tensor, .options = OP(TUTTI_AVERAGE)));
  EXPECT(limits[0] == INT64_MAX && limits[1] == INT64_MIN);
  uint16_t halves[1] = {0x7800}; /* 32768 */
  tensor = tutti_vector(halves, 1, TUTTI_F16);
  EXPECT_OK(tutti_allreduce(comm, "halves", &tensor, TUTTI_AVERAGE, NULL));
  EXPECT(halves[0] == 0x7800);
  EXPECT(tutti_allreduce_value(comm, "loss", NULL, TUTTI_SUM) == TUTTI_INVALID_ARGUMENT);
  EXPECT(tutti_allreduce_value(NULL, "loss", &loss, TUTTI_SUM) == TUTTI_INVALID_ARGUMENT);

  /* Names that are looked up once, in any order, more than one step. */
  float values[2][4];
  tutti_tensor_t tensors[2];
  tutti_name_t handles[2];
  const char* names[2] = {"w", "b"};
  for (int i = 0; i < 2; ++i) {
    tensors[i] = tutti_vector(NULL, 4, TUTTI_F32);
    EXPECT_OK(tutti_declare(comm, names[i], &tensors[i], &handles[i]));
    tensors[i].data = values[i];
  }
  /* Asked for again, they are the same handles; of another type it is another one. */
  tutti_name_t again;
  EXPECT_OK(tutti_declare(comm, "w", &tensors[0], &again));
  EXPECT(again == handles[0]);
  tutti_tensor_t narrower = tutti_vector(NULL, 4, TUTTI_F16);
  EXPECT_OK(tutti_declare(comm, "w", &narrower, &again));
  EXPECT(again != handles[0]);
  for (int step = 0; step < 5; ++step) {
    tutti_work_t works[2];
    for (int i = 0; i < 2; ++i) {
      const int which = (i + rank + step) % 2;
      for (int k = 0; k < 4; ++k) values[which][k] = (float)(rank + 10 * which);
      EXPECT_OK(
          START(&works[i], TUTTI_ALLREDUCE, .handle = handles[which], .input = &tensors[which]));
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_OK(tutti_work_wait(works[i]));
      tutti_work_release(works[i]);
    }
    for (int i = 0; i < 2; ++i) EXPECT(values[i][3] == (float)(size - 1) / 2 + (float)(10 * i));
  }
  EXPECT(START(NULL, TUTTI_ALLREDUCE, .input = &tensors[0]) == TUTTI_INVALID_ARGUMENT);
  EXPECT(tutti_declare(comm, "w", NULL, &handles[0]) == TUTTI_INVALID_ARGUMENT);
  EXPECT(handles[0] == NULL);
  return NULL;
}

const char* check_arena(tutti_comm_t comm) {
  const int rank = tutti_rank(comm), size = tutti_size(comm);
  const int64_t channels_last[4] = {24, 1, 6, 2};
  tutti_array_t arrays[3] = {TUTTI_ARRAY, TUTTI_ARRAY, TUTTI_ARRAY};
  arrays[0].name = "weight";
  arrays[0].dimensions = 1;
  arrays[0].shape[0] = 1000;
  arrays[1].name = "image";
  arrays[1].dimensions = 4;
  for (int i = 0; i < 4; ++i) arrays[1].shape[i] = i == 0 ? 5 : i == 1 ? 2 : i == 2 ? 4 : 3;
  arrays[1].strides = channels_last;
  arrays[2].name = "branch";
  arrays[2].dtype = TUTTI_F64;
  arrays[2].may_be_left_out = 1; /* a scalar */

  tutti_arena_t arena;
  EXPECT_OK(tutti_arena_create(comm, arrays, 3, NULL, &arena));
  tutti_tensor_t weight, image, branch;
  EXPECT_OK(tutti_arena_array(arena, "weight", &weight));
  EXPECT_OK(tutti_arena_array(arena, "image", &image));
  EXPECT_OK(tutti_arena_array(arena, "branch", &branch));
  EXPECT(weight.shape[0] == 1000 && image.dimensions == 4 && branch.dimensions == 0);
  EXPECT(branch.dtype == TUTTI_F64 && tutti_tensor_bytes(&image) == 480);
  float *w = weight.data, *picture = image.data;
  double* b = branch.data;
  EXPECT(w[0] == 0 && w[999] == 0 && *b == 0);
  for (int step = 0; step < 6; ++step) {
    const int all_leave_out = step % 3 == 2;
    w[999] = (float)(rank + step);
    picture[119] = (float)(10 * rank);
    *b = 7;
    EXPECT_OK(tutti_arena_ready(arena, rank % 2 ? "image" : "weight"));
    EXPECT_OK(tutti_arena_ready(arena, rank % 2 ? "weight" : "image"));
    EXPECT(tutti_arena_wait(arena) == TUTTI_INVALID_ARGUMENT);
    EXPECT(strstr(tutti_last_error(), "branch") != NULL);
    if (rank == 0 && !all_leave_out) {
      EXPECT_OK(tutti_arena_ready(arena, "branch"));
    } else {
      EXPECT_OK(tutti_arena_leave_out(arena, "branch"));
    }
    if (step % 2) {
      int goes_on = -1;
      EXPECT_OK(tutti_arena_wait_for(arena, 60, &goes_on));
      EXPECT(goes_on == 0);
    } else {
      EXPECT_OK(tutti_arena_wait(arena));
    }
    int used = -1;
    EXPECT_OK(tutti_arena_used(arena, "branch", &used));
    EXPECT(used == !all_leave_out && *b == (all_leave_out ? 0 : 7.0 / size));
    EXPECT(w[999] == (float)step + (float)(size - 1) / 2 && picture[119] == 5 * (float)(size - 1));
  }

  EXPECT(tutti_arena_ready(arena, "wieght") == TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "weight") != NULL);
  EXPECT(tutti_arena_leave_out(arena, "weight") == TUTTI_INVALID_ARGUMENT);
  EXPECT(tutti_arena_array(arena, NULL, &weight) == TUTTI_INVALID_ARGUMENT);
  EXPECT(tutti_arena_wait(NULL) == TUTTI_INVALID_ARGUMENT);
  tutti_arena_destroy(arena);
  tutti_arena_destroy(NULL);

  /* Each of these is refused in one line, and every rank may go on. */
  struct {
    tutti_array_t array;
    const char* text;
  } wrong[7] = {{TUTTI_ARRAY, "an arena is in host memory"},
                {TUTTI_ARRAY, "strides"},
                {TUTTI_ARRAY, "99 is not a dtype (expected 0 to 13)"},
                {TUTTI_ARRAY, "a has 9 dimensions (expected 0 to 8)"},
                {TUTTI_ARRAY, "an array's name must not be NULL"},
                {TUTTI_ARRAY, "struct_size of an array of an arena is 0 (expected "},
                {TUTTI_ARRAY, "a: reserved is 1 (expected 0); start from TUTTI_ARRAY"}};
  for (int i = 0; i < 7; ++i) {
    wrong[i].array.name = "a";
    wrong[i].array.dimensions = 4;
    for (int k = 0; k < 4; ++k) wrong[i].array.shape[k] = 2;
  }
  wrong[0].array.device = TUTTI_CUDA;
  wrong[1].array.strides = channels_last;
  wrong[2].array.dtype = 99;
  wrong[3].array.dimensions = 9;
  wrong[4].array.name = NULL;
  wrong[5].array.struct_size = 0;
  wrong[6].array.reserved = 1;
  for (int i = 0; i < 7; ++i) {
    EXPECT(tutti_arena_create(comm, &wrong[i].array, 1, NULL, &arena) == TUTTI_INVALID_ARGUMENT);
    EXPECT(arena == NULL && strstr(tutti_last_error(), wrong[i].text) != NULL);
    EXPECT(strchr(tutti_last_error(), '\n') == NULL);
  }

  tutti_array_t two[2] = {TUTTI_ARRAY, TUTTI_ARRAY};
  two[0].name = "one";
  two[1].name = "other";
  two[1].struct_size = 0;
  EXPECT(tutti_arena_create(comm, two, 2, NULL, &arena) == TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "array 1 has struct_size 0, array 0 has ") != NULL);

  /* A program whose header ended before the strides: its descriptions lie closer together. */
  enum { kOldSize = offsetof(tutti_array_t, strides) };
  int64_t old[2 * kOldSize / sizeof(int64_t)];
  for (int i = 0; i < 2; ++i) {
    tutti_array_t array = TUTTI_ARRAY;
    array.struct_size = kOldSize;
    array.name = i == 0 ? "first" : "second";
    memcpy((char*)old + i * kOldSize, &array, kOldSize);
  }
  EXPECT_OK(tutti_arena_create(comm, (const tutti_array_t*)old, 2, NULL, &arena));
  EXPECT_OK(tutti_arena_array(arena, "second", &weight));
  EXPECT(weight.dimensions == 0 && weight.dtype == TUTTI_F32);
  tutti_arena_destroy(arena);
  return NULL;
}

const char* check_moving_data(tutti_comm_t comm) {
  const int rank = tutti_rank(comm), size = tutti_size(comm);
  tutti_work_t work;
  tutti_tensor_t output;
  int64_t value[2] = {rank, rank}, rows[8], splits[8];
  tutti_tensor_t one_row = tutti_matrix(value, 1, 2, TUTTI_I64);
  size_t count;

  EXPECT_OK(START(&work, TUTTI_ALLGATHER, .name = "allgather", .input = &one_row));
  EXPECT_OK(tutti_work_output(work, 0, &output));
  EXPECT(output.dimensions == 2 && output.shape[0] == size && output.shape[1] == 2);
  EXPECT(output.dtype == TUTTI_I64 && tutti_tensor_bytes(&output) == 16 * size);
  for (int i = 0; i < size; ++i) EXPECT(((int64_t*)output.data)[2 * i + 1] == i);
  EXPECT_OK(tutti_work_received(work, rows, 8, &count));
  EXPECT(count == (size_t)size && rows[size - 1] == 1);
  tutti_work_release(work);

  EXPECT_OK(START(&work, TUTTI_GATHER, .name = "gather", .input = &one_row));
  EXPECT_OK(tutti_work_output(work, 0, &output));
  EXPECT(output.shape[0] == (rank == 0 ? size : 0));
  tutti_work_release(work);

  int64_t many[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  tutti_tensor_t all = tutti_vector(many, size, TUTTI_I64);
  EXPECT_OK(START(&work, TUTTI_SCATTER, .name = "scatter", .input = rank == 0 ? &all : NULL));
  EXPECT_OK(tutti_work_output(work, 0, &output));
  EXPECT(output.shape[0] == 1 && *(int64_t*)output.data == rank);
  tutti_work_release(work);

  /* Everything to the last rank. */
  for (int i = 0; i < size; ++i) splits[i] = i == size - 1 ? size : 0;
  EXPECT_OK(START(&work, TUTTI_ALLTOALL, .name = "alltoall", .input = &all, .rows = splits));
  EXPECT_OK(tutti_work_output(work, 0, &output));
  EXPECT(output.shape[0] == (rank == size - 1 ? size * size : 0));
  tutti_work_release(work);

  tutti_tensor_t pair = tutti_vector(value, 2, TUTTI_I64);
  if (size > 1 && rank == 0)
    EXPECT_OK(START(NULL, TUTTI_SEND, .name = "message", .input = &pair, .root = 1));
  if (rank == 1) {
    EXPECT_OK(START(NULL, TUTTI_RECV, .name = "message", .output = &pair));
    EXPECT(value[1] == 0);
  }
  value[0] = value[1] = rank + 5;
  EXPECT_OK(tutti_broadcast(comm, "broadcast", &pair, size - 1, NULL));
  EXPECT(value[0] == size + 4 && value[1] == size + 4);
  EXPECT_OK(tutti_barrier(comm, "barrier", NULL));
  return NULL;
}

const char* check_works(tutti_comm_t comm) {
  float value = 1;
  tutti_tensor_t tensor = tutti_vector(&value, 1, TUTTI_F32);
  tutti_work_t work, second;
  EXPECT_OK(tutti_allreduce(comm, "w", &tensor, TUTTI_SUM, &work));
  EXPECT_OK(tutti_work_wait_for(work, 30));
  EXPECT(tutti_work_done(work) == 1 && value == (float)tutti_size(comm));
  EXPECT_OK(tutti_work_wait(work));
  tutti_tensor_t output;
  EXPECT(tutti_work_output(work, 0, &output) == TUTTI_INVALID_ARGUMENT);
  tutti_work_release(work);

  /* Only rank 0 comes: its wait ends with its deadline, the operation with the others' coming. */
  if (tutti_rank(comm) == 0) {
    EXPECT_OK(tutti_barrier(comm, "late", &work));
    EXPECT(tutti_work_wait_for(work, 0.05) == TUTTI_TIMEOUT || tutti_size(comm) == 1);
    EXPECT(tutti_size(comm) == 1 || strstr(tutti_last_error(), "late") != NULL);
    EXPECT_OK(tutti_barrier(comm, "go", NULL));
    EXPECT_OK(tutti_work_wait(work));
    tutti_work_release(work);
  } else {
    EXPECT_OK(tutti_barrier(comm, "go", NULL));
    EXPECT_OK(tutti_barrier(comm, "late", NULL));
  }

  /* One name twice. */
  float twice = 1;
  tutti_tensor_t again = tutti_vector(&twice, 1, TUTTI_F32);
  if (tutti_size(comm) > 1) {
    if (tutti_rank(comm) == 0) {
      EXPECT_OK(tutti_allreduce(comm, "x", &tensor, TUTTI_SUM, &work));
      EXPECT(tutti_allreduce(comm, "x", &again, TUTTI_SUM, &second) == TUTTI_DUPLICATE_NAME);
      EXPECT(second == NULL && strcmp(tutti_last_error_tensor(), "x") == 0);
      EXPECT_OK(tutti_barrier(comm, "asked twice", NULL));
      EXPECT_OK(tutti_work_wait(work));
      tutti_work_release(work);
    } else {
      EXPECT_OK(tutti_barrier(comm, "asked twice", NULL));
      EXPECT_OK(tutti_allreduce(comm, "x", &tensor, TUTTI_SUM, NULL));
    }
  }
  return NULL;
}

const char* check_split_and_join(tutti_comm_t comm) {
  const int rank = tutti_rank(comm), size = tutti_size(comm);
  tutti_comm_t half;
  EXPECT_OK(tutti_split(comm, rank % 2, -rank, &half));
  EXPECT(tutti_size(half) == (size + 1 - rank % 2) / 2);
  float value = (float)rank;
  tutti_tensor_t tensor = tutti_vector(&value, 1, TUTTI_F32);
  EXPECT_OK(tutti_allreduce(half, "v", &tensor, TUTTI_MAX, NULL));
  EXPECT((int)value % 2 == rank % 2 && (int)value >= size - 2);
  tutti_destroy(half);

  tutti_comm_t none;
  EXPECT_OK(tutti_split(comm, rank == 0 ? -1 : 0, 0, &none));
  EXPECT((none == NULL) == (rank == 0));
  tutti_destroy(none);

  /* Rank 0 has one step less: the mean is over those that are left. */
  if (rank != 0) {
    value = 3;
    EXPECT_OK(tutti_allreduce(comm, "uneven", &tensor, TUTTI_AVERAGE, NULL));
    EXPECT(value == 3);
  }
  tutti_work_t work;
  tutti_tensor_t last;
  EXPECT_OK(START(&work, TUTTI_JOIN));
  EXPECT_OK(tutti_work_output(work, 0, &last));
  EXPECT(last.dimensions == 0 && *(int64_t*)last.data >= 0 && *(int64_t*)last.data < size);
  tutti_work_release(work);
  return NULL;
}

/* The text of the last error must hold `part`. */
static int refused(int status, const char* part) {
  return status == TUTTI_INVALID_ARGUMENT && strstr(tutti_last_error(), part) != NULL;
}

const char* check_refusals(tutti_comm_t comm) {
  float value = 1;
  tutti_tensor_t good = tutti_vector(&value, 1, TUTTI_F32), bad;
  tutti_work_t work = NULL;
  EXPECT(refused(tutti_allreduce(NULL, "a", &good, TUTTI_SUM, NULL), "comm must not be NULL"));
  EXPECT(refused(tutti_allreduce(comm, NULL, &good, TUTTI_SUM, NULL), "name must not be NULL"));
  EXPECT(refused(tutti_allreduce(comm, "", &good, TUTTI_SUM, NULL), "name"));
  EXPECT(refused(tutti_allreduce(comm, "a", NULL, TUTTI_SUM, NULL), "input must not be NULL"));
  EXPECT(refused(tutti_allreduce(comm, "a", &good, 8, NULL), "8 is not an op (expected 0 to 7)"));
  EXPECT(refused(tutti_allreduce(comm, "a", &good, -1, NULL), "-1 is not an op"));
  bad = tutti_vector(&value, 1, 14);
  EXPECT(refused(tutti_allreduce(comm, "a", &bad, TUTTI_SUM, NULL),
                 "14 is not a dtype (expected 0 to 13)"));
  EXPECT(tutti_tensor_bytes(&bad) == -1 && tutti_tensor_bytes(NULL) == -1);
  bad = tutti_vector(&value, -1, TUTTI_F32);
  EXPECT(refused(tutti_allreduce(comm, "a", &bad, TUTTI_SUM, NULL), "-1"));
  bad = tutti_vector(NULL, 4, TUTTI_F32);
  EXPECT(refused(tutti_allreduce(comm, "a", &bad, TUTTI_SUM, NULL), "has no memory"));
  bad = good;
  bad.dimensions = 9;
  EXPECT(refused(tutti_allreduce(comm, "a", &bad, TUTTI_SUM, NULL),
                 "input has 9 dimensions (expected 0 to 8)"));
  bad = good;
  bad.device = 5;
  EXPECT(refused(tutti_allreduce(comm, "a", &bad, TUTTI_SUM, NULL),
                 "input lies on device 5 (expected TUTTI_CPU or TUTTI_CUDA)"));

  tutti_reduce_options_t options = TUTTI_REDUCE_OPTIONS;
  options.struct_size = 3;
  EXPECT(refused(START(NULL, TUTTI_ALLREDUCE, .name = "a", .input = &good, .output = &good,
                       .options = &options),
                 "struct_size of the options is 3 (expected "));
  EXPECT(refused(tutti_broadcast(comm, "a", &good, tutti_size(comm), NULL), "does not exist"));
  EXPECT(
      refused(START(NULL, TUTTI_ALLGATHER, .name = "a", .input = &good), "work must not be NULL"));
  EXPECT(refused(tutti_start_group(comm, "g", NULL, 1, NULL), "calls must not be NULL"));
  EXPECT(refused(START(NULL, TUTTI_SEND, .name = "a", .input = &good, .root = tutti_rank(comm)),
                 " cannot send to itself"));

  EXPECT(refused(tutti_work_wait(NULL), "work must not be NULL"));
  EXPECT(tutti_work_done(NULL) == -1 && tutti_rank(NULL) == -1 && tutti_size(NULL) == -1);
  EXPECT(refused(tutti_work_output(work, 0, &bad), "work"));
  EXPECT(refused(tutti_split(comm, 0, 0, NULL), "part must not be NULL"));
  EXPECT(refused(tutti_get_statistics(comm, NULL), "statistics must not be NULL"));
  EXPECT(refused(tutti_create(NULL), "comm must not be NULL"));
  EXPECT(refused(tutti_store_create(NULL, NULL), "store must not be NULL"));

  tutti_comm_t other = comm;
  const char* settings[1] = {"fusion_bytes=64MBB"};
  tutti_store_t store;
  EXPECT_OK(tutti_store_create(NULL, &store));
  EXPECT(refused(tutti_create_thread(0, 1, store, settings, 1, &other),
                 "TUTTI_FUSION_BYTES=64MBB is not a size"));
  EXPECT(other == NULL);
  settings[0] = "fusion_byte=64";
  EXPECT(refused(tutti_create_thread(0, 1, store, settings, 1, &other), "TUTTI_FUSION_BYTES"));
  settings[0] = "fusion_bytes";
  EXPECT(refused(tutti_create_thread(0, 1, store, settings, 1, &other),
                 "\"fusion_bytes\" is not a setting (expected name=value)"));
  EXPECT(refused(tutti_create_thread(2, 1, store, NULL, 0, &other), "rank 2"));
  EXPECT(refused(tutti_create_thread(0, 1, NULL, NULL, 0, &other), "store must not be NULL"));
  tutti_store_destroy(store);
  tutti_destroy(NULL);
  tutti_work_release(NULL);

  EXPECT(strcmp(tutti_status_name(TUTTI_PEER_LOST), "peer lost") == 0);
  EXPECT(strcmp(tutti_status_name(TUTTI_OK), "ok") == 0);
  EXPECT(strcmp(tutti_status_name(99), "unknown status") == 0);

  /* None of it did harm. */
  EXPECT_OK(tutti_allreduce(comm, "a", &good, TUTTI_SUM, NULL));
  EXPECT(value == (float)tutti_size(comm));
  return NULL;
}

const char* check_mismatch(tutti_comm_t comm) {
  if (tutti_size(comm) < 2) return NULL;
  float values[3] = {1, 1, 1};
  const int last = tutti_size(comm) - 1;
  tutti_tensor_t tensor = tutti_vector(values, tutti_rank(comm) == last ? 3 : 2, TUTTI_F32);
  EXPECT(tutti_allreduce(comm, "a", &tensor, TUTTI_SUM, NULL) == TUTTI_MISMATCH);
  EXPECT(strstr(tutti_last_error(), "f32[2]") && strstr(tutti_last_error(), "f32[3]"));
  EXPECT(strcmp(tutti_last_error_tensor(), "a") == 0 && tutti_last_error_rank() == last);
  EXPECT(values[0] == 1);
  tensor = tutti_vector(values, 2, TUTTI_F32);
  EXPECT_OK(tutti_allreduce(comm, "a", &tensor, TUTTI_SUM, NULL));
  EXPECT(values[0] == (float)tutti_size(comm) && values[2] == 1);
  return NULL;
}

const char* check_statistics(tutti_comm_t comm) {
  float value = 1;
  tutti_tensor_t tensor = tutti_vector(&value, 1, TUTTI_F32);
  tutti_statistics_t all = {0};
  EXPECT(tutti_get_statistics(comm, &all) == TUTTI_INVALID_ARGUMENT);
  EXPECT(strstr(tutti_last_error(), "struct_size of the statistics is 0 (expected ") != NULL);
  EXPECT_OK(tutti_allreduce(comm, "a", &tensor, TUTTI_SUM, NULL));
  all.struct_size = sizeof all;
  EXPECT_OK(tutti_get_statistics(comm, &all));
  EXPECT(all.struct_size == sizeof all && all.operations >= 1 && all.tensors >= 1);
  tutti_statistics_t more = {0};
  more.struct_size = sizeof more;
  EXPECT_OK(tutti_allreduce(comm, "a", &tensor, TUTTI_SUM, NULL));
  EXPECT_OK(tutti_get_statistics(comm, &more));
  EXPECT(more.operations == all.operations + 1 && more.tensors == all.tensors + 1);
  EXPECT(more.buckets == all.buckets + 1);
  /* A rank's wait for one that is late is skew, unless that rank is late itself. */
  float on_all = tutti_size(comm) == 1;
  const tutti_tensor_t seen_on_all = tutti_vector(&on_all, 1, TUTTI_F32);
  for (int attempt = 0; attempt < 10 && on_all == 0; ++attempt) {
    const struct timespec late = {0, 300 * 1000 * 1000};
    EXPECT_OK(tutti_get_statistics(comm, &all));
    if (tutti_rank(comm) == 1) nanosleep(&late, NULL);
    EXPECT_OK(tutti_allreduce(comm, "late", &tensor, TUTTI_SUM, NULL));
    EXPECT_OK(tutti_get_statistics(comm, &more));
    on_all = tutti_rank(comm) == 1 || more.skew_seconds - all.skew_seconds > 0.1;
    EXPECT_OK(tutti_allreduce(comm, "waited", &seen_on_all, TUTTI_MIN, NULL));
  }
  EXPECT(on_all == 1);
  /* A program built when the struct was shorter. */
  tutti_statistics_t old;
  memset(&old, 0x55, sizeof old);
  old.struct_size = offsetof(tutti_statistics_t, tensors);
  EXPECT_OK(tutti_get_statistics(comm, &old));
  EXPECT(old.operations >= 1 && old.tensors == 0x5555555555555555u);
  /* It grew at its end once already. */
  memset(&old, 0x55, sizeof old);
  old.struct_size = offsetof(tutti_statistics_t, plans_locked);
  EXPECT_OK(tutti_get_statistics(comm, &old));
  EXPECT(old.skew_seconds >= 0 && old.plans_locked == 0x5555555555555555u);
  EXPECT(old.caller_runs == 0x5555555555555555u);
  EXPECT(tutti_size(comm) == 1 || more.negotiation_messages > 0);
  /* A waiting thread drives the engine itself where the background thread is not first. */
  on_all = 0;
  for (int attempt = 0; attempt < 10000 && on_all == 0; ++attempt) {
    EXPECT_OK(tutti_get_statistics(comm, &more));
    on_all = more.caller_runs > 0;
    EXPECT_OK(tutti_allreduce(comm, "drove", &seen_on_all, TUTTI_MIN, NULL));
  }
  EXPECT(on_all == 1);

  /* Control messages count, and what ranks read in each other's memory does not. */
  uint64_t sent[4] = {7, 7, 7, 7}, bytes = 0;
  size_t count = 0;
  EXPECT_OK(tutti_get_statistics(comm, &all));
  EXPECT_OK(tutti_get_bytes_to_peers(comm, sent, 4, &count));
  EXPECT(count == (size_t)tutti_size(comm) && sent[tutti_rank(comm)] == 0);
  for (size_t i = 0; i < count; ++i) bytes += sent[i];
  EXPECT_OK(tutti_get_statistics(comm, &more));
  EXPECT(bytes >= all.control_bytes);
  EXPECT(bytes <= more.control_bytes + more.data_bytes + 200 * more.data_messages);
  EXPECT_OK(tutti_get_bytes_to_peers(comm, NULL, 0, &count));
  EXPECT(count == (size_t)tutti_size(comm));
  EXPECT(tutti_get_bytes_to_peers(comm, NULL, 1, &count) == TUTTI_INVALID_ARGUMENT);
  EXPECT(tutti_get_bytes_to_peers(comm, sent, 4, NULL) == TUTTI_INVALID_ARGUMENT);
  return NULL;
}

const char* check_place(tutti_comm_t comm) {
  EXPECT(tutti_local_rank(comm) == tutti_rank(comm) && tutti_local_size(comm) == tutti_size(comm));
  EXPECT(tutti_local_rank(NULL) == -1 && tutti_local_size(NULL) == -1);
  EXPECT(strstr(tutti_last_error(), "comm must not be NULL") != NULL);
  /* Alone it is the first and only one, on its host too. */
  tutti_comm_t own;
  EXPECT_OK(tutti_split(comm, tutti_rank(comm), 0, &own));
  EXPECT(tutti_local_rank(own) == 0 && tutti_local_size(own) == 1 && tutti_size(own) == 1);
  tutti_destroy(own);
  return NULL;
}

/* Rank 1 leaves at once; what needs it fails on the others, which go on without it. */
const char* check_shrink(tutti_comm_t comm) {
  const int rank = tutti_rank(comm), size = tutti_size(comm);
  float value = 1;
  tutti_tensor_t tensor = tutti_vector(&value, 1, TUTTI_F32);
  EXPECT_OK(tutti_barrier(comm, "all are here", NULL));
  if (rank == 1) return NULL;
  EXPECT(tutti_allreduce(comm, "without rank 1", &tensor, TUTTI_SUM, NULL) == TUTTI_PEER_LEFT);
  EXPECT(tutti_last_error_rank() == 1);
  tutti_comm_t survivors = comm;
  EXPECT(tutti_shrink(NULL, 20, &survivors) == TUTTI_INVALID_ARGUMENT && survivors == NULL);
  EXPECT_OK(tutti_shrink(comm, 20, &survivors));
  EXPECT(tutti_size(survivors) == size - 1 && tutti_rank(survivors) == (rank == 0 ? 0 : rank - 1));
  value = (float)rank;
  EXPECT_OK(tutti_allreduce(survivors, "sum", &tensor, TUTTI_SUM, NULL));
  EXPECT(value == (float)(size * (size - 1) / 2 - 1));
  tutti_destroy(survivors);
  return NULL;
}
